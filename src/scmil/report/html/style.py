"""How the page looks and the little it does: one style sheet and one script, inside the page."""

from __future__ import annotations

# Colours c0-c6 are those of Okabe and Ito, which colour-blind readers can tell apart.
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --muted: #5c6670; --paper: #fff; --panel: #f6f7f9; --line: #d9dee4;
  --link: #0b5cad; --warn: #7a4b00; --warn-back: #fff3d6; --warn-line: #e69f00; --up: #00684c; --down: #a84300;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00; --c5: #56b4e9; --c6: #1b1f24; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --muted: #9aa5b1; --paper: #14171b; --panel: #1c2026; --line: #343b44; --link: #7cbcff;
    --warn: #ffd48a; --warn-back: #33270d; --warn-line: #e69f00; --up: #4fd1a8; --down: #ff9b5e; --c0: #4ba3dd;
    --c1: #f07d2e; --c2: #25bf95; --c3: #dd93bd; --c4: #e69f00; --c5: #9bd4f5; --c6: #e6e9ed; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: var(--ink); background: var(--paper); }
main { max-width: 78rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 3.25rem 0 .5rem; padding-top: 1.25rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p, ul.plain { max-width: 46rem; margin: .5rem 0; overflow-wrap: anywhere; }
.about, .note { color: var(--muted); }
.note { font-size: .875rem; }
.verdict { font-size: 1.1rem; line-height: 1.6; max-width: 50rem; margin: 1.25rem 0; padding: 1rem 1.25rem;
  background: var(--panel); border-left: 4px solid var(--c0); border-radius: 0 6px 6px 0; }
.badge { display: inline-block; font-size: .75rem; font-weight: 600; line-height: 1.4; padding: .1rem .5rem;
  border: 1px solid var(--line); border-radius: 999px; color: var(--muted); vertical-align: .12em; }
.badge.warn { color: var(--warn); background: var(--warn-back); border-color: var(--warn-line); }
p.warn { color: var(--warn); background: var(--warn-back); border: 1px solid var(--warn-line); border-radius: 6px;
  padding: .5rem .75rem; font-size: .9rem; }
nav { font-size: .9rem; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: 1rem 0; }
a { color: var(--link); text-underline-offset: .15em; }
.pick { display: inline-flex; align-items: center; gap: .5rem; margin: .75rem 0 0; font-size: .9rem; }
.pick[hidden] { display: none; }
select { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
  padding: .25rem .5rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 2px; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; border: 1px solid var(--line); border-radius: 8px;
  width: fit-content; max-width: 100%; }
.scroll.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem;
  font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: .45rem .8rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { position: sticky; top: 0; z-index: 2; background: var(--panel); font-weight: 600; vertical-align: bottom;
  white-space: normal; }
th:first-child { position: sticky; left: 0; z-index: 1; background: var(--paper); border-right: 1px solid var(--line); }
thead th:first-child { z-index: 3; background: var(--panel); }
tbody th { font-weight: 500; white-space: normal; min-width: 9.5rem; max-width: 16rem; overflow-wrap: anywhere; }
tbody tr:hover > * { background: var(--panel); }
.left, tbody th { text-align: left; }
td.words { text-align: left; white-space: normal; min-width: 16rem; max-width: 24rem; font-size: .94em;
  line-height: 1.4; overflow-wrap: anywhere; }
thead button { all: unset; cursor: pointer; }
thead button:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
thead button::after { content: "\\a0\\2195"; opacity: .3; }
th[aria-sort=ascending] button::after { content: "\\a0\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\a0\\2193"; opacity: 1; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.sd, .published, td small { color: var(--muted); font-size: .9em; }
.best { font-weight: 700; }
.published, small { display: block; }
th small { font-weight: 400; color: var(--muted); }
.up { color: var(--up); }
.down { color: var(--down); }
.m { display: none; }
[data-metric=accuracy] .m-accuracy, [data-metric=auc] .m-auc, [data-metric=balanced_accuracy] .m-balanced_accuracy,
  [data-metric=f1] .m-f1, [data-metric=brier] .m-brier, [data-metric=calibration_error] .m-calibration_error {
  display: block; }
.panels { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  margin: 1rem 0; }
.panels h3 { margin-top: 0; }
.panels dl { margin: 0; }
.panels figure { margin: 0; max-width: 30rem; }
.panels img { width: 100%; height: auto; border-radius: 4px; }
.panels figcaption { font-size: 0.85rem; margin-top: 0.3rem; }
.panels.small { grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); gap: .5rem; }
.panels.small figcaption { font-size: .75rem; font-weight: 400; color: var(--muted); }
.panels.half { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.panels.half figure { max-width: none; }
.panels.wide { grid-template-columns: minmax(0, 1fr); }
.panels.wide figure { max-width: 60rem; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .25rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--ink);
  font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--muted); }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; }
.zero { stroke: var(--muted); stroke-width: 1; }
.dot { opacity: .3; }
.mean { stroke: var(--paper); stroke-width: 1.5; }
.interval { stroke-width: 2.5; stroke-linecap: round; }
.curve { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.hollow { fill: var(--paper); stroke: var(--muted); stroke-width: 1.75; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .5rem 0; list-style: none;
  font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .45rem; overflow-wrap: anywhere; }
.legend svg { width: 28px; flex: none; }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.f4 { fill: var(--c4); } .f5 { fill: var(--c5); } .f6 { fill: var(--c6); }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); } .s6 { stroke: var(--c6); }
details { margin: .75rem 0; }
summary { cursor: pointer; font-weight: 600; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { font: .8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--panel);
  padding: 1rem; border-radius: 8px; overflow: auto; max-height: 30rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1.25rem; font-size: .9rem;
  max-width: 60rem; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 40rem) {
  thead th { white-space: nowrap; }
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  .verdict { font-size: 1rem; }
  th, td { padding: .4rem .6rem; }
  tbody th { min-width: 7rem; max-width: 9rem; }
  td.words { min-width: 13rem; }
  dl { grid-template-columns: minmax(0, 1fr); }
  dd { margin-bottom: .4rem; }
}
@page { size: A4 landscape; margin: 12mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --panel: #f3f3f3; --line: #bbb; --muted: #444; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  nav, .pick, thead button::after { display: none !important; }
  .scroll, .scroll.tall { overflow: visible; max-height: none; }
  table { font-size: 7.5pt; }
  thead th, th:first-child { position: static; }
  th, td { padding: .2rem .4rem; }
  td.words { min-width: 11rem; }
  figure, tr, .verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

SCRIPT = """
"use strict";
const valueOf = (row, column, metric) => {
  const cell = row.cells[column];
  const shown = cell.querySelector(".m-" + metric) || cell;
  const text = shown.dataset.sort;
  if (text === undefined) return cell.textContent.trim();
  return text === "" ? null : Number(text);
};
const compare = (a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
const sortTable = (table, header) => {
  const body = table.tBodies[0];
  const metric = table.closest("[data-metric]")?.dataset.metric;
  const rows = [...body.rows].map((row) => [valueOf(row, header.cellIndex, metric), row]);
  const known = rows.filter(([value]) => value !== null);
  const numeric = known.some(([value]) => typeof value === "number");
  const before = header.getAttribute("aria-sort");
  const direction = before ? (before === "ascending" ? "descending" : "ascending") : (numeric ? "descending" : "ascending");
  const sign = direction === "ascending" ? 1 : -1;
  known.sort(([a], [b]) => sign * compare(a, b));
  body.append(...known.map(([, row]) => row), ...rows.filter(([value]) => value === null).map(([, row]) => row));
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
};
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sortTable(button.closest("table"), button.closest("th")));
for (const pick of document.querySelectorAll(".pick")) {
  pick.hidden = false;
  const area = pick.closest("[data-metric]");
  pick.querySelector("select").addEventListener("change", (event) => {
    area.dataset.metric = event.target.value;
    for (const header of area.querySelectorAll("th[aria-sort]")) header.removeAttribute("aria-sort");
  });
}
"""
