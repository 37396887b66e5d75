"""The documents as a web site, made by MkDocs."""
