// The colours of these pages can be told apart in every kind of sight, after Okabe and Ito, on light and on dark.
#pragma once

#include <string_view>

namespace flashjit {

// The text has neither `<` nor `&`, so that it means the same to readers of XML and of HTML.
constexpr std::string_view kPageStyle = R"css(
:root {
  --page: #f5f6f8; --card: #ffffff; --ink: #1b1f24; --soft: #525a63; --line: #d5dae0; --chosen: #e7f1fa;
  --skipped: #dfe3e8; --masked: #e68a1c; --plain: #0072b2; --point: #c44e00;
  --wait: #f3e3a8; --copy: #bfe0f5; --product: #b9e3d3; --arithmetic: #e3cdf2; --release: #f6c9ae; --other: #e4e7eb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2126; --ink: #e8ebee; --soft: #a9b2bc; --line: #3a4149; --chosen: #24384a;
    --skipped: #343a42; --masked: #f0a040; --plain: #4aa3df; --point: #ff8c42;
    --wait: #5c4f16; --copy: #16486a; --product: #145443; --arithmetic: #4c2a66; --release: #70371a; --other: #383f47;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1240px; padding: 16px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif;
}
h1 { font-size: 24px; margin: 4px 0 12px; }
h2 { font-size: 18px; margin: 0 0 8px; overflow-wrap: anywhere; }
h3 { font-size: 16px; margin: 0 0 8px; }
p, ul, ol { margin: 4px 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
h2 code { font-size: 16px; }
pre { overflow-x: auto; margin: 8px 0; }
summary { cursor: pointer; }
article { margin: 0 0 32px; }
header, section, footer, .failed, .all {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; margin: 0 0 14px;
  min-width: 0;
}
.failed { border: 2px solid var(--point); white-space: pre-wrap; overflow-wrap: anywhere; }
.pictures > div { min-width: 0; }
.pictures {
  display: grid; gap: 0 14px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
}
.note { color: var(--soft); font-size: 14px; max-width: 90ch; }
.notes { padding-left: 20px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 14px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 6px 0; list-style: none; font-size: 14px; }
.swatch {
  display: inline-block; width: 12px; height: 12px; margin-right: 6px; border: 1px solid var(--soft); vertical-align: -1px;
}
svg { display: block; width: 100%; height: auto; }
svg text { font: 13px system-ui, sans-serif; fill: var(--soft); }
svg text.strong { fill: var(--ink); font-weight: 600; }
.skipped { fill: var(--skipped); background: var(--skipped); }
.masked { fill: var(--masked); background: var(--masked); }
.plain { fill: var(--plain); background: var(--plain); }
.wait { fill: var(--wait); background: var(--wait); }
.copy { fill: var(--copy); background: var(--copy); }
.product { fill: var(--product); background: var(--product); }
.arithmetic { fill: var(--arithmetic); background: var(--arithmetic); }
.release { fill: var(--release); background: var(--release); }
.other { fill: var(--other); background: var(--other); }
.box { stroke: var(--soft); stroke-width: 1; }
.map { max-width: 600px; }
.roof-line { stroke: var(--soft); stroke-width: 2; fill: none; }
.ceiling { stroke: var(--soft); stroke-width: 1.5; fill: none; }
.ceiling.softly { stroke-dasharray: 5 4; }
.grid { stroke: var(--line); }
.axis { stroke: var(--soft); }
.drop { stroke: var(--point); stroke-dasharray: 2 4; }
.point { fill: var(--point); stroke: var(--card); stroke-width: 1.5; }
.point.textbook { fill: var(--plain); }
.bars { list-style: none; padding: 0; }
.bars li { display: grid; grid-template-columns: 1fr auto; gap: 0 10px; padding: 3px 0; }
.bars .value, td.number { font-variant-numeric: tabular-nums; }
.track { display: block; grid-column: 1 / -1; height: 12px; background: var(--skipped); }
.bar { display: block; height: 100%; background: var(--plain); }
.limit .bar, .chosen .bar { background: var(--point); }
.limit { font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { border-bottom: 1px solid var(--line); padding: 5px 8px; text-align: left; vertical-align: top; }
th.number, td.number { text-align: right; white-space: nowrap; }
th.number { width: 1%; }
td .track { width: 160px; margin-top: 4px; }
td.words { min-width: 240px; overflow-wrap: anywhere; }
tr.chosen { background: var(--chosen); }
.roles text { font-size: 12px; }
@media (max-width: 600px) {
  body { padding: 10px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 6px; }
  td .track { width: 90px; }
  .map text, .roofline text { font-size: 15px; }
}
)css";

}  // namespace flashjit
