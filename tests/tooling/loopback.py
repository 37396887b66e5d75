"""Web servers on loopback."""

from __future__ import annotations

import functools
import http.server
import io
import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JSON = "application/vnd.pypi.simple.v1+json"  # a page of a package index


class Handler(http.server.SimpleHTTPRequestHandler):
    """A web server that sends parts of files, and JSON to who asks for it if `negotiates`."""

    negotiates = False
    asked: list[str]

    def send_head(self) -> Any:
        self.asked.append(urllib.parse.unquote(self.path))
        if self.negotiates and self.path.endswith("/") and JSON in self.headers.get("Accept", ""):
            self.path += "index.json"
        if match := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            return self.send_part(int(match[1]), int(match[2]) + 1)
        return super().send_head()

    def send_part(self, start: int, end: int) -> io.BytesIO | None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return None
        content = path.read_bytes()
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content[start:end])))
        self.end_headers()
        return io.BytesIO(content[start:end])

    def guess_type(self, path: Any) -> str:
        return JSON if str(path).endswith(".json") else super().guess_type(path)

    def log_message(self, *arguments: object) -> None:
        pass


@dataclass
class Web:
    """Web servers on loopback, each for one folder."""

    asked: list[str] = field(default_factory=list)  # paths, of all servers
    stop: list[Callable[[], None]] = field(default_factory=list)

    def serve(self, folder: Path, base: type[Handler] = Handler, **attributes: Any) -> str:
        """Serve a folder with a handler of these attributes; return its URL."""
        kind = type("OneHandler", (base,), {"asked": self.asked, **attributes})
        handler = functools.partial(kind, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        self.stop += [server.shutdown, server.server_close]
        return f"http://127.0.0.1:{server.server_port}"
