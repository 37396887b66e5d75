"""The site's tree is the repository's: docs/ is a folder of it, beside what else is written."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from lms_cli.site import cells

# Documents outside of docs/. A link to any other file there is broken on the site.
OUTSIDE = (
    "README.md",
    "LICENSE",
    "build/README.md",
    "ci/README.md",
    "scripts/locks/README.md",
    "scripts/locks/toolchain.lock",
    "scripts/simcuda/README.md",
    "wheels/README.md",
)

STYLE = "site.css"


class Notebook(File):  # type: ignore[misc]  # which mypy does not have
    """A page that is made of a notebook."""

    def is_documentation_page(self) -> bool:
        """It is, though no Markdown."""
        return True

    @property
    def content_string(self) -> str:
        """The page's Markdown."""
        return cells.markdown(super().content_string)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give each file of docs/ its path in the repository, and add the others."""
    docs = Path(config.docs_dir)
    inside = [file for file in files if file.src_dir == config.docs_dir]
    themes = [file for file in files if file.src_dir != config.docs_dir]
    documents = [*(f"{docs.name}/{file.src_uri}" for file in inside), *OUTSIDE]
    placed = [
        (Notebook if path.endswith(".ipynb") else File)(
            path, str(docs.parent), config.site_dir, config.use_directory_urls
        )
        for path in documents
    ]
    style = File.generated(config, STYLE, abs_src_path=str(Path(__file__).with_name(STYLE)))
    return Files([*themes, *placed, style])
