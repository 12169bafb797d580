"""The layout of a page, and what every page knows: the user, the language, the theme."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import headgate
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.sessions import Session
from headgate.service.dashboard.translation import CHINESE, translate

ROOT: Final = "/dashboard"
THEMES: Final = ("auto", "light", "dark")

_PAGE = """<!doctype html>
<html lang="{lang}" data-theme="{theme}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · headgate</title>
<link rel="icon" href="{root}/static/icon.svg?v={version}" type="image/svg+xml">
<link rel="stylesheet" href="{root}/static/vendor/uPlot.min.css?v={version}">
<link rel="stylesheet" href="{root}/static/dashboard.css?v={version}">
{scripts}
</head>
<body{page_attributes}>
<a class="skip" href="#main">{skip}</a>
{header}
<main id="main" tabindex="-1">{notice}{body}</main>
{data}
</body>
</html>
"""

_HEADER = """<header class="top">
<a class="brand" href="{root}/"><svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 20V9a8 8 0 0 1 16 0v11"/>
<path d="M9 20v-9m6 9v-9M4 15h16"/></svg>headgate</a>
<nav aria-label="{nav_label}">{links}</nav>
<div class="tools"><span id="live" class="connection" role="status" data-on="{live}" data-off="{away}"></span>
<a class="tool" href="{language_url}" lang="{other_lang}" hreflang="{other_lang}">{other_language}</a>
<button class="tool" id="theme" type="button" title="{theme_label}" aria-label="{theme_label}">◐</button>
<span class="person"><span class="user">{user}</span> <span class="role">{role}</span></span>
<form method="post" action="{root}/logout"><input type="hidden" name="form" value="{form}">
<button class="tool" type="submit" title="{logout}"><svg viewBox="0 0 24 24" aria-hidden="true"><path
d="M14 4H5v16h9M10 12h10m-4-4 4 4-4 4"/></svg><span class="word">{logout}</span></button></form></div>
</header>"""

_LINKS: Final = (
    ("", "Overview"),
    ("rules", "Rules"),
    ("audit", "Audit"),
    ("number", "Find a number"),
    ("playground", "Playground"),
)
_OF_OPERATORS: Final = frozenset({"number"})


@dataclass
class View:
    """The context of a page: everything that it knows of its request."""

    session: Session | None
    form_token: str
    language: str
    theme: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    problem: str | None = None  # why the engine's server does not answer

    def t(self, text: str, /, **values: Any) -> str:
        """Translates a text, and fills in values.

        >>> View(None, "", "en", "auto", "/").t("{n} rules", n=3)
        '3 rules'
        """
        translated = translate(self.language, text)
        return translated.format(**values) if values else translated

    @property
    def is_operator(self) -> bool:
        return self.session is not None and self.session.is_operator

    def form_field(self) -> Html:
        """Returns the field that shows a form to be ours."""
        return html('<input type="hidden" name="form" value="{token}">', token=self.form_token)

    def page(
        self,
        title: str,
        body: Html,
        *,
        active: str | None = None,
        scripts: tuple[str, ...] = (),
        data: Any = None,
        notice: Html | None = None,
    ) -> bytes:
        """Returns a whole page. `data` is for its scripts."""
        names = ("page.js", *scripts)
        vendor = ("vendor/uPlot.iife.min.js",) if "charts.js" in scripts or "frontier.js" in scripts else ()
        return html(
            _PAGE,
            lang=self.language,
            theme=self.theme,
            title=title,
            root=ROOT,
            version=headgate.__version__,
            skip=self.t("Skip to the content"),
            scripts=join(_script(name) for name in (*vendor, *names)),
            page_attributes=html(' class="{name}"', name="app" if self.session else "door"),
            header=self._header(active) if self.session else Html(""),
            notice=join([self._banner(), notice or Html("")]),
            body=body,
            data=Html("") if data is None else _data(data),
        ).encode("utf-8", "replace")

    def _banner(self) -> Html:
        if self.problem is None or self.session is None:
            return Html("")
        return html(
            '<p class="problem" id="away" role="alert">{text} <small>{problem}</small></p>',
            text=self.t(
                "Redis does not answer. This page shows what this process knows, and nothing can be changed now."
            ),
            problem=self.problem,
        )

    def _header(self, active: str | None) -> Html:
        assert self.session is not None
        links = join(
            html(
                '<a href="{root}/{path}"{current}>{text}</a>',
                root=ROOT,
                path=path,
                current=Html(' aria-current="page"') if path == active else Html(""),
                text=self.t(text),
            )
            for path, text in _LINKS
            if self.is_operator or path not in _OF_OPERATORS
        )
        other = "en" if self.language == CHINESE else CHINESE
        query = {name: value for name, value in self.query.items() if name != "lang"} | {"lang": other}
        return html(
            _HEADER,
            root=ROOT,
            nav_label=self.t("Pages"),
            links=links,
            live=self.t("live"),
            away=self.t("no connection"),
            language_url=f"{quote(self.path)}?{urlencode(query)}",
            other_lang=other,
            other_language="中文" if other == CHINESE else "English",
            theme_label=self.t("Light or dark"),
            form=self.form_token,
            logout=self.t("Log out"),
            user=self.session.user,
            role=self.t(self.session.role),
        )


def _script(name: str) -> Html:
    return html(
        '<script src="{root}/static/{name}?v={version}" defer></script>',
        root=ROOT,
        name=name,
        version=headgate.__version__,
    )


def _data(data: Any) -> Html:
    """Returns data for scripts. It is not run, so the policy allows it; "<" is escaped, so that it cannot end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="data">{text}</script>')
