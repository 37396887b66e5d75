"""The demonstration: two models, and the program that trains them and reports what it saw."""
