"""The check service: decides calls over HTTP and gRPC, for gateways that cannot decide by themselves.

It connects a limiter with other programs' protocols. It makes no decisions of its own.

Modules:
    settings            all settings: flags, environment, file
    supervisor          starts workers and replaces those that die
    worker              one worker: a limiter and its servers in one event loop
    http_server         runs granian
    asgi                adapts an application to ASGI
    app                 paths of the check API, and their statuses
    check               the methods of the check API
    calls_in_flight     calls that adaptive rules let pass, until they are reported
    check_schema        the JSON of the check API
    json_decoding       decodes JSON bodies, and explains what is wrong in them
    metrics             GET /metrics, of all workers together
    openapi             the OpenAPI description
    receipt_tokens      signs and verifies receipts
    request_cache       caches requests that come again
    forward_auth        sub-requests of nginx, Traefik, Caddy and Envoy
    sample_rules        the rulebook of a service without one
    grpc_server         answers gRPC
    grpc_health         gRPC health checks
    idle_connections    closes connections that send nothing
    body_timeout        ends requests whose body does not arrive
    degradations        finds what does not work while the service answers
    degradation_files   shares what is degraded among the workers of one service
    log_format          formats the log, as text or JSON
    stderr_capture      logs what libraries write to stderr
    token_guesses       limits the guessing of tokens
    admin               the admin API
    dashboard           the page that operators keep open
    staged_enforcement  enforces a rule for ever more of its keys, and rolls back
    node_reports        version, degraded state and latency of all workers
    envoy               Envoy's rate limit and quota services
"""
