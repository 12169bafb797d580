-- Builds the response of a refusal: status, body, redirect. Pure.
--
--   refuse: {status: 403, body: "...", type: text/plain}     that
--   refuse: {redirect: /slow-down}                           302 and a Location, or another status from 300 to 399
--   nothing                                                  429, and nginx's own page, so that error_page works; 503
--                                                            for an adaptive limit
--
-- A client that prefers JSON, and whose rule has no body of its own, gets a problem document (RFC 9457) that names the
-- rules which refused. It prefers JSON if it names application/json or application/problem+json in Accept, and does not
-- prefer text/html: by q, or if q is the same, by naming text/html first. A wildcard names nothing: curl's */* gets the
-- page.
--
-- Laws (tests/nginx/http/test_refusal_body.py):
--   - a rule's own body, and a redirect, are sent whatever the client accepts;
--   - no page and no problem document follows a status that is no error, nor 444, at which nginx closes the connection;
--   - no value of a rule can end a header field: a redirect with blanks, control characters or bytes beyond ASCII is
--     refused when the bundle is compiled, as the loader of rulebooks refuses it, and so is such a content type.

local M = {}

local PROBLEM_TYPE = "https://iana.org/assignments/http-problem-types#quota-exceeded"
local TITLE = "Too Many Requests"
local DETAIL = "A quota of this service is used up. Retry-After says how many seconds to wait, if waiting helps."
local OVERLOADED_TYPE = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
local OVERLOADED_TITLE = "Service Unavailable"
local OVERLOADED_DETAIL = "This service is working on as many requests as it can. Try again later."
local DEFAULT_CONTENT_TYPE = "text/plain; charset=utf-8"
local NGINX_CLOSE_STATUS = 444

local function fail(name, ...) error('rule "' .. name .. '": ' .. table.concat { ... }, 0) end

local function checked_status(status, min_status, max_status, name)
  if type(status) == "number" and status >= min_status and status <= max_status and status == math.floor(status) then
    return status
  end
  fail(name, "refuse has a status of ", tostring(status), ". It is a whole number from ", min_status, " to ",
    max_status, ".")
end

-- Checks a redirect as the loader does: https://host/... or /path, but not //host, and printable throughout.
local function checked_redirect(address, name)
  local printable = type(address) == "string" and not string.find(address, "[^!-~]")
  local scheme = printable and string.match(string.lower(address), "^(https?)://[^/?#]")
  if scheme or printable and string.find(address, "^/") and not string.find(address, "^//") then return address end
  fail(name, "refuse has a redirect that is no address. Write https://host/path or /path, without blanks.")
end

local function checked_type(content_type, name)
  if type(content_type) == "string" and string.find(content_type, "^[!-~]+/[!-~]+[ -~]*$") then return content_type end
  fail(name, "refuse has a type that is no content type. Write one such as text/plain or application/json.")
end

-- Compiles a rule's `refuse` (nil: it has none) into { status, body, type, location }, where body and location may be
-- nil. `overloaded`: by an adaptive limit, and no quota. An error if it cannot be sent as a response.
function M.compile(refuse, name, overloaded)
  refuse = refuse or {}
  if refuse.redirect then
    local location = checked_redirect(refuse.redirect, name)
    return { status = checked_status(refuse.status or 302, 300, 399, name), location = location }
  end
  local status = refuse.status or (overloaded and 503 or 429)
  local refusal = { status = checked_status(status, 200, 599, name), overloaded = overloaded or nil }
  if refuse.body then
    refusal.body, refusal.type = refuse.body, refuse.type and checked_type(refuse.type, name) or DEFAULT_CONTENT_TYPE
  end
  return refusal
end

local function quality(parameters)
  local q = string.match(parameters, ";[ \t]*[qQ]=([%d.]+)")
  return q and tonumber(q) or 1
end

-- Returns the quality of each media type, and the position of its first occurrence.
local function parse_accept(accept)
  local qualities, positions, position = {}, {}, 0
  for range, parameters in string.gmatch(string.lower(accept), "([^,; \t]+)([^,]*)") do
    position = position + 1
    if not qualities[range] or quality(parameters) > qualities[range] then qualities[range] = quality(parameters) end
    positions[range] = positions[range] or position
  end
  return qualities, positions
end

-- Returns whether a client prefers JSON to a page, by its Accept field (nil: it has none).
function M.wants_json(accept)
  if not accept or not string.find(accept, "[jJ][sS][oO][nN]") then return false end
  local qualities, positions = parse_accept(accept)
  local json, problem = qualities["application/json"] or 0, qualities["application/problem+json"] or 0
  local json_quality = math.max(json, problem)
  local html_quality = qualities["text/html"] or qualities["text/*"] or qualities["*/*"] or 0
  if json_quality ~= html_quality then return json_quality > html_quality end
  local position = positions[json == json_quality and "application/json" or "application/problem+json"]
  return json_quality > 0 and (not positions["text/html"] or position < positions["text/html"])
end

local function escaped(character) return string.format("\\u%04x", string.byte(character)) end

local function json_text(text) return '"' .. string.gsub(text, '[%c"\\]', escaped) .. '"' end

local function problem(status, violated, overloaded)
  local names = {}
  for i, name in ipairs(violated) do names[i] = json_text(name) end
  return '{"type":"' .. (overloaded and OVERLOADED_TYPE or PROBLEM_TYPE)
    .. '","title":"' .. (overloaded and OVERLOADED_TITLE or TITLE) .. '","status":' .. status
    .. ',"detail":"' .. (overloaded and OVERLOADED_DETAIL or DETAIL) .. '","violated-policies":['
    .. table.concat(names, ",") .. "]}"
end

-- Returns the response to this client: the rule's own, or a problem document. `violated`: the names of the rules that
-- refused.
function M.for_client(compiled, violated, accept)
  local status = compiled.status
  if compiled.body or status < 400 or status == NGINX_CLOSE_STATUS or not M.wants_json(accept) then return compiled end
  return { status = status, body = problem(status, violated, compiled.overloaded), type = "application/problem+json" }
end

return M
