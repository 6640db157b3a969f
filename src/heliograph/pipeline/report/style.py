"""The style of the report: one colour for each meaning, in light and in dark."""

_COLOURS = {
    # Good ends, in green and blue; still open, in grey and violet; failures, in orange and red.
    "shown": ("#1b7f4d", "#46c98b"),
    "accepted": ("#2f6fb3", "#6cb2f5"),
    "coalesced": ("#0f8a94", "#4fc7d1"),
    "pending": ("#7a5fb5", "#b59cf0"),
    "waiting": ("#6b7280", "#a3acba"),
    "delivered": ("#8a7f55", "#cfc28b"),
    "removed": ("#8d6e63", "#c9a598"),
    "undeliverable": ("#a0522d", "#e09a6f"),
    "retried": ("#b7791f", "#f0bb55"),
    "rejected": ("#b5476b", "#f08bab"),
    "expired": ("#c05621", "#f6975c"),
    "unaccounted": ("#c81e1e", "#ff5c5c"),
    # Quantiles, from light to dark.
    "p50": ("#6d83c9", "#7f93d6"),
    "p90": ("#4a5fb0", "#9fb0e6"),
    "p99": ("#2f3f8a", "#c3cef2"),
    "p99.9": ("#161f52", "#eef1fd"),
    "tokens": ("#a03b9e", "#e58be3"),
    "subscriptions": ("#4d7c0f", "#a9d44f"),
}
_BASE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1f2328;--soft:#57606a;--line:#d8dee4;
--link:#0b5cad;--good:#e2f4ea;--good-fg:#0f4d2c;--some:#fff3d1;--some-fg:#5c4300;
--bad:#fde4e4;--bad-fg:#8a1010}
body{font:16px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);margin:0}
main{max-width:940px;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}
h2 a{font-size:.875rem;font-weight:400;margin-left:.6rem}
a{color:var(--link)}p{margin:.5rem 0}.together{white-space:nowrap}
.scroll{overflow-x:auto}
svg{display:block;width:100%;min-width:600px;height:auto;font-size:12px;fill:var(--soft)}
svg line{stroke:var(--line)}svg polyline{fill:none!important;stroke-width:2}
table{border-collapse:collapse;font-size:.875rem}caption{text-align:left;color:var(--soft)}
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
.text{text-align:left}
td:first-child,th:first-child{text-align:left;padding-left:0}
.verdict{padding:.8rem 1rem;border-radius:8px;font-weight:600;font-size:1.1rem}
.complete{background:var(--good);color:var(--good-fg)}
.gaps,.lagging{background:var(--some);color:var(--some-fg)}
.missing{background:var(--bad);color:var(--bad-fg)}
.files{color:var(--soft);font-size:.875rem}
.legend{list-style:none;padding:0;margin:.4rem 0;font-size:.875rem}
.legend li{display:inline-block;margin-right:1.1rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;border-radius:2px}
"""
_DARK = """
:root{--bg:#14171a;--fg:#e6e8ea;--soft:#a9b2bb;--line:#363c42;--link:#82bdff;
--good:#123a26;--good-fg:#a8f0c8;--some:#41340c;--some-fg:#ffe39a;--bad:#4a1616;--bad-fg:#ffc4c4}
"""


def style() -> str:
    """Return the style sheet."""
    light = "".join(_rule(name, colours[0]) for name, colours in _COLOURS.items())
    dark = "".join(_rule(name, colours[1]) for name, colours in _COLOURS.items())
    return f"{_BASE}{light}@media(prefers-color-scheme:dark){{{_DARK}{dark}}}"


def _rule(name: str, colour: str) -> str:
    word = name.replace(".", "\\.")
    return f".s-{word}{{fill:{colour};stroke:{colour};background:{colour}}}"
