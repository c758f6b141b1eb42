"""Style of the report page: one palette for light and one for dark, chosen by the reader's system."""

STYLE = """
:root { --paper:#fbfbf9; --ink:#1d2330; --faint:#656d7c; --line:#e1e3e6; --card:#ffffff; --accent:#2b5fa8;
  --good:#1f7a4d; --bad:#b3372c; --warn:#8a6100; --cell:43,95,168; --miss:179,55,44; }
@media (prefers-color-scheme: dark) { :root { --paper:#14171c; --ink:#e6e8ec; --faint:#9aa3b2; --line:#2c323b;
  --card:#1b1f26; --accent:#7fb0f0; --good:#63c794; --bad:#f08a7e; --warn:#e0b65a; --cell:88,146,224;
  --miss:226,110,98; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.5 system-ui,sans-serif; }
main { max-width:960px; margin:0 auto; padding:32px 24px 64px; }
h1 { font-size:28px; margin:0; } h2 { font-size:18px; margin:0 0 12px; } h3 { font-size:15px; margin:20px 0 8px; }
header p { color:var(--faint); margin:4px 0 20px; }
section { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:20px; margin:16px 0; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(160px,1fr)); gap:12px; }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 16px; }
.tile b { display:block; font-size:26px; font-variant-numeric:tabular-nums; } .tile span { display:block; }
.tile small { color:var(--faint); }
.warnings { border-left:4px solid var(--warn); } .warnings ul { margin:0; padding-left:18px; }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th { text-align:right; font-weight:600; color:var(--faint); font-size:13px; white-space:nowrap; }
td { text-align:right; } td, th { padding:6px 10px; border-bottom:1px solid var(--line); vertical-align:top; }
td:first-child, th:first-child { text-align:left; padding-left:0; }
td:first-child, td:nth-child(4) { white-space:nowrap; }
.wide td:last-child, .wide th:last-child { text-align:left; }
.wide td:last-child { font-size:13px; color:var(--faint); min-width:260px; }
td .bar { display:inline-block; height:9px; width:calc(90px * var(--share)); background:var(--accent);
  margin-right:8px; border-radius:2px; }
.badge { padding:1px 8px; border-radius:9px; font-size:12px; border:1px solid currentColor; white-space:nowrap; }
.badge.pass { color:var(--good); } .badge.fail { color:var(--bad); font-weight:700; }
.badge.inconclusive { color:var(--warn); } .badge.not_applicable { color:var(--faint); }
dl { display:grid; grid-template-columns:max-content 1fr; gap:4px 18px; margin:0; }
dt { color:var(--faint); } dd { margin:0; overflow-wrap:anywhere; }
code { font-size:13px; } p { margin:8px 0 14px; color:var(--faint); }
svg { width:100%; height:auto; display:block; margin-bottom:12px; }
svg text { font:13px system-ui,sans-serif; fill:var(--ink); } svg .note { font-size:12px; fill:var(--faint); }
svg .axis { stroke:var(--line); } svg .reference { stroke:var(--bad); stroke-width:2; stroke-dasharray:4 3; }
svg .whisker { stroke:var(--accent); stroke-width:3; stroke-linecap:round; opacity:.55; }
svg .dot { fill:var(--accent); }
svg .curve { fill:none; stroke:var(--accent); stroke-width:2; }
svg .curve.other { stroke:var(--faint); stroke-width:1; opacity:.45; }
svg .cell { fill:rgba(var(--cell),calc(.05 + .95 * var(--share))); }
svg .cell.miss { fill:rgba(var(--miss),calc(.04 + .96 * var(--share))); } svg .strong { fill:var(--card); }
"""
