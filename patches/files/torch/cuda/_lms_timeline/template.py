"""The page, with places for what is on it: string.Template says how they are marked."""

PAGE = r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
body { margin: 1rem 1.5rem; font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; }
h1 { font-size: 1.3rem; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
dl { display: flex; flex-wrap: wrap; gap: .3rem 1.8rem; margin: 0 0 .5rem; }
dt { color: #666; font-size: 12px; }
dd { margin: 0; font-weight: 600; }
p { color: #666; margin: .3rem 0; }
kbd { border: 1px solid #aaa; border-radius: 3px; padding: 0 .3em; font-size: 12px; }
table { border-collapse: collapse; }
th, td {
  text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #8884;
  vertical-align: top;
}
th { font-weight: 600; }
button { font: inherit; font-size: 12px; cursor: pointer; }
details { margin: 2rem 0 0; color: #666; }
#figures { min-height: 560px; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #121212; }
  dt, p, details { color: #aaa; }
  /* What is drawn is inverted; its hues stay. */
  #figures { filter: invert(.93) hue-rotate(180deg); }
  .bk-Tooltip {
    --tooltip-color: #222; --tooltip-text: #ddd;
    --tooltip-border: #666; --tooltip-arrow-color: #666;
  }
}
</style>
</head>
<body>
<h1>$title</h1>
<dl>$facts</dl>
<p>Wheel or <kbd>+</kbd> <kbd>&minus;</kbd>: zoom. Drag or <kbd>←</kbd> <kbd>→</kbd>: move.
<kbd>0</kbd>: all of the step. A click on a name at the right hides what it names.</p>
<div id="figures">
${figures}
</div>
$tables
<details><summary>Licence of the library that draws this page</summary><pre>$licence</pre></details>
$library
$script
<script id="events" type="application/json">$events</script>
<script>
"use strict";
const events = JSON.parse(document.getElementById("events").textContent);
const model = name => Bokeh.documents[0].get_model_by_name(name);
const time = () => model("time");

// The latest end so far: events of one kind overlap where several threads launched them.
for (const kind of events.kinds) {
  let latest = -Infinity;
  kind.until = kind.end.map(end => latest = Math.max(latest, end));
}

// Those of one kind that follow each other within a pixel are shown as one, so that no more are
// drawn than a screen has pixels, however many there are.
function shown(kind, start, end, pixel) {
  const columns = {begin: [], end: [], took: [], name: [], why: [], count: []};
  const {begin: begins, end: ends} = kind, words = events.words;
  let first = 0, beyond = ends.length;
  while (first < beyond) { // the first that ends after the start
    const middle = (first + beyond) >> 1;
    kind.until[middle] < start ? first = middle + 1 : beyond = middle;
  }
  while (first < ends.length && begins[first] <= end) {
    let next = first, took = 0;
    do took += ends[next] - begins[next];
    while (++next < ends.length && ends[next] - begins[first] < pixel);
    const count = next - first, name = words[kind.name[first]];
    columns.begin.push(begins[first]);
    columns.end.push(ends[next - 1]);
    columns.took.push(took);
    columns.count.push(count);
    columns.name.push(count > 1 ? `$${count} together, the first: $${name}` : name);
    columns.why.push(count > 1 ? "zoom in to tell them apart" : words[kind.why[first]]);
    first = next;
  }
  return columns;
}

function draw() {
  const {start, end} = time(), width = document.getElementById("figures").clientWidth;
  const pixel = (end - start) / width;
  for (const kind of events.kinds) model(kind.source).data = shown(kind, start, end, pixel);
}

let isDue = false;
function drawSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; draw(); });
}

function begin() {
  if (!Bokeh.documents.length) return setTimeout(begin, 10);
  time().change.connect(drawSoon);
  addEventListener("resize", drawSoon);
  draw();
}
begin();

function show(begin, end) {
  const range = time(), [first, last] = range.bounds;
  const width = Math.min(Math.max(end - begin, range.min_interval), last - first);
  begin = Math.min(Math.max(begin, first), last - width);
  range.setv({start: begin, end: begin + width});
}
function zoom(factor) {
  const {start, end} = time(), middle = (start + end) / 2, half = (end - start) / 2 * factor;
  show(middle - half, middle + half);
}
function move(share) {
  const {start, end} = time(), by = (end - start) * share;
  show(start + by, end + by);
}
const keys = {
  "+": () => zoom(0.5), "=": () => zoom(0.5), "w": () => zoom(0.5),
  "-": () => zoom(2), "s": () => zoom(2),
  "ArrowLeft": () => move(-0.25), "a": () => move(-0.25),
  "ArrowRight": () => move(0.25), "d": () => move(0.25),
  "0": () => show(...time().bounds), "Home": () => show(...time().bounds),
};
addEventListener("keydown", event => {
  if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});
for (const row of document.querySelectorAll("tr[data-begin]")) {
  row.querySelector("button").addEventListener("click", () => {
    const begin = +row.dataset.begin, end = +row.dataset.end;
    const around = Math.max((end - begin) * 0.1, 0.01);
    show(begin - around, end + around);
    document.getElementById("figures").scrollIntoView();
  });
}
</script>
</body>
</html>
"""
