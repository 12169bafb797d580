"""Requests that real gateways sent.

Recorded from nginx 1.22, Caddy 2.11, Traefik 3.7 and Envoy 1.40 (use_remote_address, and all fields allowed), as
they asked for a client on loopback about PUT /a%2Fb%252F/../c//d?q=%41&r=2, with Host: Ex.com:81, two lines of
X-A and of Cookie, Authorization, User-Agent, and an evil value in every field of a gateway, and X_Forwarded_Uri.
"""

TARGET = "/a%2Fb%252F/../c//d?q=%41&r=2"
NGINX = """GET /check HTTP/1.0
X-Original-Method: PUT
X-Original-URI: /a%2Fb%252F/../c//d?q=%41&r=2
X-Original-Host: ex.com
X-Forwarded-For: 6.6.6.6, 127.0.0.1
Host: 127.0.0.1:18951
Connection: close
X-Forwarded-Uri: /evil
X-Forwarded-Method: EVIL
X-Forwarded-Host: evil
X-Real-IP: 7.7.7.7
X-Envoy-External-Address: 8.8.8.8
X-Envoy-Original-Path: /evil
X-A: 1
X-A: 2
Cookie: a=b
Cookie: c=d
Authorization: Basic x
User-Agent: t"""
CADDY = """GET /check?q=%41&r=2 HTTP/1.1
Host: Ex.com:81
User-Agent: t
Authorization: Basic x
Cookie: a=b
Cookie: c=d
Via: 1.1 Caddy
X-A: 1
X-A: 2
X-Envoy-External-Address: 8.8.8.8
X-Envoy-Original-Path: /evil
X-Forwarded-For: 127.0.0.1
X-Forwarded-Host: Ex.com:81
X-Forwarded-Method: PUT
X-Forwarded-Proto: http
X-Forwarded-Uri: /a%2Fb%252F/../c//d?q=%41&r=2
X-Original-Uri: /evil
X-Real-Ip: 7.7.7.7
Accept-Encoding: gzip"""
TRAEFIK = """GET /check HTTP/1.1
Host: 127.0.0.1:18951
User-Agent: t
Authorization: Basic x
Cookie: a=b
Cookie: c=d
X-A: 1
X-A: 2
X-Envoy-External-Address: 8.8.8.8
X-Envoy-Original-Path: /evil
X-Forwarded-For: 127.0.0.1
X-Forwarded-Host: Ex.com:81
X-Forwarded-Method: PUT
X-Forwarded-Port: 81
X-Forwarded-Proto: http
X-Forwarded-Server: vm
X-Forwarded-Uri: /c/d?q=%41&r=2
X-Original-Uri: /evil
X-Real-Ip: 127.0.0.1
Accept-Encoding: gzip"""
ENVOY = """PUT /envoy/a%2Fb%252F/../c//d?q=%41&r=2 HTTP/1.1
host: Ex.com:81
content-length: 0
x-forwarded-method: EVIL
user-agent: t
x-a: 1,2
x-request-id: c38310a0-551a-473e-8bc0-eab6adf10c95
x-envoy-external-address: 127.0.0.1
x_forwarded_uri: /evil2
authorization: Basic x
x-forwarded-for: 6.6.6.6,192.0.2.2
x-forwarded-host: evil
x-real-ip: 7.7.7.7
x-forwarded-proto: http
x-forwarded-uri: /evil
x-original-uri: /evil
cookie: a=b,c=d
x-envoy-internal: true
x-envoy-expected-rq-timeout-ms: 1000"""
