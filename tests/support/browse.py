"""Chromium, as Qt has it, without a screen: a program of its own, run in an environment with PyQt6.

Reads from standard input {"page": path, "dark": bool, "size": [width, height], "steps": [...]} and
prints {"results": [...], "console": [...]}. A step is one of {"run": JavaScript, whose value is its
result}, {"key": name}, {"wheel": [x, y, notches]}, {"point": [x, y]} and {"picture": path}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from PyQt6.QtCore import QEvent, QEventLoop, QPoint, QPointF, Qt, QTimer, QUrl
from PyQt6.QtGui import QMouseEvent, QWheelEvent
from PyQt6.QtTest import QTest
from PyQt6.QtWebEngineCore import QWebEnginePage
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

NOTCH = 120  # of a wheel, in eighths of a degree
KEYS = {"+": Qt.Key.Key_Plus, "-": Qt.Key.Key_Minus, "0": Qt.Key.Key_0, "Right": Qt.Key.Key_Right}


class Page(QWebEnginePage):
    """Remembers what is said on the console."""

    said: list[str]

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:  # noqa: N802
        self.said.append(f"{level.name}: {message} ({source}:{line})")


def main() -> None:
    task = json.load(sys.stdin)
    scheme = 0 if task["dark"] else 1  # mojom::PreferredColorScheme
    flags = f"--blink-settings=preferredColorScheme={scheme}"
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = flags
    # There is none as root, nor in many a container; the pages are our own.
    os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"
    app = QApplication(["browse", "-platform", "offscreen"])
    view = QWebEngineView()
    page = Page(view)
    page.said = []
    view.setPage(page)
    view.resize(*task["size"])
    view.show()
    loading = QEventLoop()
    page.loadFinished.connect(lambda loaded: loading.exit(int(loaded)))
    page.load(QUrl.fromLocalFile(task["page"]))
    if not loading.exec():
        sys.exit(f"{task['page']} does not load")
    pause(800)
    results = [perform(view, step) for step in task["steps"]]
    print(json.dumps({"results": results, "console": page.said}))
    sys.stdout.flush()
    view.setPage(None)
    app.quit()


def perform(view: QWebEngineView, step: dict[str, Any]) -> Any:
    (what, given), result = step.popitem(), None
    if what == "run":
        result = run(view, given)
    elif what == "key":
        QTest.keyClick(view.focusProxy(), KEYS[given])
    elif what == "wheel":
        wheel(view, *given)
    elif what == "point":
        point(view, *given)
    elif what == "picture":
        view.grab().save(given)
    pause(300)
    return result


def run(view: QWebEngineView, script: str) -> Any:
    waiting, found = QEventLoop(), []

    def take(value: Any) -> None:
        found.append(value)
        waiting.quit()

    view.page().runJavaScript(script, take)
    waiting.exec()
    return found[0]


def wheel(view: QWebEngineView, x: int, y: int, notches: int) -> None:
    target, at = view.focusProxy(), QPointF(x, y)
    event = QWheelEvent(
        *(at, target.mapToGlobal(at), QPoint(), QPoint(0, NOTCH * notches)),
        *(Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier),
        *(Qt.ScrollPhase.NoScrollPhase, False),
    )
    QApplication.sendEvent(target, event)


def point(view: QWebEngineView, x: int, y: int) -> None:
    target, none = view.focusProxy(), Qt.MouseButton.NoButton
    for at in (QPointF(x - 5, y), QPointF(x, y)):
        kind, keys = QEvent.Type.MouseMove, Qt.KeyboardModifier.NoModifier
        moved = QMouseEvent(kind, at, target.mapToGlobal(at), none, none, keys)
        QApplication.sendEvent(target, moved)


def pause(milliseconds: int) -> None:
    waiting = QEventLoop()
    QTimer.singleShot(milliseconds, waiting.quit)
    waiting.exec()


if __name__ == "__main__":
    main()
