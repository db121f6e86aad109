"""The style sheet of the page that an audit makes."""

STYLE = """
:root {
  color-scheme: light dark;
  --fg: #1c2430;
  --dim: #556070;
  --bg: #fff;
  --line: #d5dbe3;
  --panel: #f5f7fa;
  --pass: #176f3d;
  --fail: #b3261e;
  --open: #8a5a00;
  --bar: #3b6fb5;
  --other: #a9b8cc;
  --level: #c2410c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --fg: #e3e8ef;
    --dim: #9aa7b8;
    --bg: #14181e;
    --line: #303945;
    --panel: #1c222b;
    --pass: #5cc98a;
    --fail: #ff8a80;
    --open: #f0b429;
    --bar: #6ea3ea;
    --other: #56657a;
    --level: #fb923c;
  }
}
body {
  margin: 0;
  background: var(--bg);
  color: var(--fg);
  font: 16px/1.5 system-ui, sans-serif;
}
main {
  max-width: 1120px;
  margin: 0 auto;
  padding: 1.5rem 1rem;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.6rem; margin: 0 0 .8rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; }
.banner {
  border-left: 5px solid;
  padding: .6rem .9rem;
  background: var(--panel);
  font-weight: 600;
}
.pass { color: var(--pass); }
.fail { color: var(--fail); }
.not-checkable { color: var(--open); }
dl {
  display: grid;
  gap: .5rem 1.2rem;
  margin: 0;
  grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr));
}
dl.long { grid-template-columns: 1fr; }
dt { color: var(--dim); font-size: .9rem; }
dd { margin: 0; }
ul {
  list-style: none;
  display: flex;
  flex-wrap: wrap;
  gap: .3rem 1.4rem;
  margin: 0;
  padding: 0;
}
table, tbody { display: block; font-size: .95rem; }
thead { display: none; }
td:empty { display: none; }
tr {
  display: grid;
  grid-template-columns: auto 1fr;
  gap: .1rem .8rem;
  padding: .5rem 0;
  border-bottom: 1px solid var(--line);
}
th, td { padding: 0; text-align: left; }
th { color: var(--dim); font-weight: 400; }
td:first-child, .points td:nth-child(2) { font-weight: 600; }
td:nth-child(n + 3) { grid-column: 1 / -1; }
.points td:nth-child(5) { color: var(--dim); }
.points td:is(:nth-child(3), :nth-child(4)) { order: 1; }
@media (min-width: 760px) {
  thead { display: block; }
  tr { grid-template-columns: 8rem 1fr 2fr; }
  :is(th, td):nth-child(n + 3) { grid-column: 3; }
  .points :is(th, td):nth-child(3) { grid-area: 2 / 2; }
  .points :is(th, td):nth-child(4) { grid-area: 2 / 3; }
  .points :is(th, td):nth-child(5) { grid-area: 1 / 3; }
}
details { border-bottom: 1px solid var(--line); padding: .35rem 0; }
summary { cursor: pointer; }
.figures {
  display: grid;
  gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
}
figure {
  margin: 0;
  padding: .8rem;
  background: var(--panel);
  border-radius: 6px;
  min-width: 0;
}
figure div { overflow: auto; max-height: 34rem; }
@media print {
  figure div { max-height: none; }
}
figcaption { font-size: .9rem; color: var(--dim); margin-bottom: .6rem; }
figcaption b { color: var(--fg); }
svg { display: block; font-size: 14px; fill: var(--fg); }
rect { stroke: var(--panel); stroke-width: 1.5; }
.bar { fill: var(--bar); }
.other { fill: var(--other); }
.level { stroke: var(--level); stroke-width: 2; }
.axis { stroke: var(--dim); }
.yes { fill: var(--pass); fill-opacity: .25; }
.no { fill: var(--bg); }
.wrong { fill: var(--fail); fill-opacity: .35; }
"""
