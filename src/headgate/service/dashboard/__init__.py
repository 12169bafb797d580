"""The dashboard: the pages that an operator keeps open, at /dashboard of the admin address.

Every change goes through a handler of the admin API, so that both are checked, logged and audited alike.

    app               finds the page of a request; sessions, roles, forged requests, errors
    sessions          logins by token, signed cookies
    request, page_request   forms, cookies, responses; an authorized request
    page_layout, html the layout of a page, and HTML with everything escaped
    translation       English and Chinese
    number_format, rule_text   numbers, spans and rules as pages show them
    data_sources      counts, records, versions, nodes and changes for pages
    engine_availability   whether Redis answers, asked once before each page
    uncertain_publication   a publication without a reply, until it is known whether it was made
    live_counts       the counts of the last minute, and the stream of what changes in them
    login_page, overview_page, rule_page, key_page, rulebook_page, audit_page   the pages
    number_page, number_result   finds a limit in an uploaded log
    playground_page   plays simulated traffic through limits
    upload            receives a file into a temporary file without a name
    upload_lock       one upload at a time, among all workers
    background_job, job_process   long work, in a process of its own that reports how far it is
    stages_card       staged enforcement of a rule: its form, and how far it is
    key_stories       since when a key is refused, and what it calls
    operator_actions  override, block, exempt, reset, and their undoing
    rulebook_diff, version_list   what a rulebook changes, and its published versions
    preview, replay_process   replays calls under two rulebooks, in a process of its own
    site              the dashboard and the admin API as one application
    static            style, scripts, and uPlot with its licence
"""
