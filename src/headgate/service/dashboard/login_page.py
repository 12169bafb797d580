"""The login: a token, and the name under which changes are recorded."""

from __future__ import annotations

from headgate.service.dashboard.html import Html, html
from headgate.service.dashboard.page_layout import ROOT, View

_PAGE = """<section class="login card">
<h1>headgate</h1>
<p class="hint">{about}</p>
{problem}
<form method="post" action="{root}/login">
<input type="hidden" name="next" value="{target}">
<label for="user">{user_label}</label>
<input id="user" name="user" value="{user}" autocomplete="username" required maxlength="100"{focus_user}>
<label for="token">{token_label}</label>
<input id="token" name="token" type="password" autocomplete="current-password" required{focus_token}>
<button class="button primary" type="submit">{log_in}</button>
</form>
<p class="hint">{where}</p>
</section>"""


def login_page(view: View, target: str, user: str = "", problem: str = "") -> bytes:
    """Returns the page; `target` is where it leads."""
    focus = Html(" autofocus")
    body = html(
        _PAGE,
        root=ROOT,
        about=view.t("Watch what limits do, and change them."),
        problem=html('<p class="problem" role="alert">{text}</p>', text=problem) if problem else None,
        target=target,
        user=user,
        user_label=view.t("Your name, for the audit trail"),
        token_label=view.t("Token"),
        log_in=view.t("Log in"),
        where=view.t("The service prints its admin token when it starts, unless one was set."),
        focus_user=Html("") if user else focus,
        focus_token=focus if user else Html(""),
    )
    return view.page(view.t("Log in"), body)
