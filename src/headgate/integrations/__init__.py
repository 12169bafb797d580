"""Connects web frameworks, HTTP clients and task queues to a limiter: one file each, on ground that they share.

The ground, which knows no framework:
    code_limit       CodeLimit: a limit in code, limit("5/s", key=...), checked when it is made
    application_settings  LimitSettings: the settings of an application's limits, checked when they are given
    request_parts    RequestParts: a request as a framework's file describes it; PartsReader: its attributes
    request_limits   RequestLimits, AsyncRequestLimits: all limits of one application, on one engine
    request_flows    what both share: settings, names of limits, the steps of a decision
    finish_flows     what follows the response: refunds, real costs, slots
    request_plan_cache   keeps how requests were planned that only the client's address tells apart
    loop_turns       LoopTurns: lets requests that one reply wakes go on over several turns of the event loop
    outage_log       logs when requests cannot be decided, and when they are again
    request_record   RequestRecord: what was decided about one request, and the header fields of its response
    unreachable_limits    RouteInfo; limits that can never match, and rules that match no route
    shared_address   warns if all clients have the proxy's address
    openapi_refusals    adds the responses of refused requests to an OpenAPI schema
    argument_removal    removes an argument that a framework passes to a function which does not take it
    unknown_settings    refuses settings that do not exist, and names the one that was meant

The frameworks, each importing its one framework and no other:
    asgi             a middleware for any ASGI application: Starlette, Litestar, Quart
    fastapi          rate_limits(app), Depends(limit("5/s")), @limit("5/s")
    wsgi             a middleware for any WSGI application: Bottle, Pyramid, Falcon
    flask            RateLimiter(app), @limit("5/s"), limits of blueprints; with flask_routes and flask_commands
    django           HeadgateMiddleware, the setting HEADGATE, @limit("5/s"), system checks
    drf              throttles of Django REST framework, on those of Django
    aiohttp          rate_limits(app), @limit("5/s") on handlers and Views; with aiohttp_routes
    grpc             interceptors for servers of threads and of grpc.aio; with grpc_calls and grpc_status_details
    mcp              a middleware for MCP servers of the official package; with mcp_calls, on which all three stand
    fastmcp          the same for FastMCP; both are an MCPCallLimiter (mcp_call_limiter)
    mcp_asgi         a middleware of ASGI that reads JSON-RPC: MCP servers of any package
    adaptive         AdaptiveMiddleware and AdaptiveWSGIMiddleware: limit requests in flight by an AdaptiveLimiter

The clients, which call somebody else's service, on ground of their own:
    outbound         OutboundCalls: wait for a turn, send, pause after a 429, slow down before one; its settings
    outbound_turns   turns by a limiter and an adaptive limit; what a response says about the other side
    outbound_rules   turns by a rulebook: its rates first, then room under its adaptive limits
    httpx            LimitedTransport, AsyncLimitedTransport
    requests         LimitedAdapter
    aiohttp_client   LimitedCalls, a middleware

The task queues, whose tasks begin now or wait for their place, on ground of their own:
    task_calls       TaskCall: a call and its attributes; TaskLimit: a limit of a task in code
    task_settings    TaskSettings: the settings of an application's limits
    task_limits      TaskLimits: decides whether a call begins or is put back; places, slots, outages
    celery           rate_limits(app), @limit("100/minute", key="user_id")
    dramatiq         ActorLimits, a middleware, and the option limit= of actors

What a framework's file does:
    1. Once per application: RequestLimits(rules, engine, limits=..., user=..., trusted_proxies=..., ...). The
       engine is opened at the first request (`.limiter`); call close() with the application.
    2. At start: check_routes([RouteInfo(template, methods, code_limits), ...]). It raises InvalidRule for limits
       in code that can never match, and warns of rules that match no route. Templates are written /items/{id} and
       /files/{path...}, whatever the framework writes.
    3. Per request: record = limits.begin(RequestParts(...)), and put it where the application finds it. Then
       answer = limits.decide(record, bound_limits): one atomic decision of the rulebook and these limits. If the
       route is known only later, decide in two stages: the second with with_rules=False. An answer is the response
       to send instead of the application's (429, the rule's own, or 503 if the engine is down). A queue's delay
       has been slept when it returns.
    4. limits.bind(route_name(methods, template), code_limits) gives the limits of a route their names; it is
       cached.
    5. On every response, also on errors and refusals: add record.fields(). Never test the truth of
       record.decision: a refused Decision is false.
    6. Add what was sent of the body to record.bytes_sent. After every response, also of one that failed or was
       aborted: limits.finish(record, status, response): refunds by status, settles real costs, releases slots.

    limits = RequestLimits("rules.yaml", "redis://localhost:6379/0", trusted_proxies=["10.0.0.0/8"])

    def wsgi_app(environ, start_response):
        parts = RequestParts(method, path, query, headers, environ["REMOTE_ADDR"], native=environ)
        record = environ["headgate"] = limits.begin(parts)
        if limits.decide(record, limits.app_limits) is not None:
            status, fields, body = record.response()
            start_response(f"{status} ...", fields)
            return [body]

        seen = [500]

        def start_with_fields(status, headers, exc_info=None):
            seen.append(int(status[:3]))
            return start_response(status, [*headers, *record.fields()], exc_info)

        try:
            return app(environ, start_with_fields)         # (a real one finishes when the iterable is closed)
        finally:
            limits.finish(record, seen[-1])
"""
