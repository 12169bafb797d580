-- What a refusal answers: the part that knows no nginx.
--
--   refuse: {status: 403, body: "...", type: text/plain}     that
--   refuse: {redirect: /slow-down}                           302 and a Location, or another status from 300 to 399
--   nothing                                                  429, and nginx's own page, so that error_page works
--
-- A client that would rather have JSON than a page, and whose rule has no body of its own, gets a problem (RFC 9457)
-- that names the rules which refused. It would rather have JSON if it names application/json or
-- application/problem+json in Accept, and does not like text/html better: by q, or if q is the same, by naming
-- text/html first. A wildcard names nothing: curl's */* gets the page.
--
-- Laws (tests/nginx/http/test_refusal_body.py):
--   - a rule's own body, and a redirect, are answered whatever the client accepts;
--   - no page and no problem follows a status that is no error, nor 444, at which nginx answers nothing;
--   - nothing that a rule says can end a header field: an address with blanks, control characters or bytes beyond ASCII
--     is refused when the plate is compiled, as the loader of rulebooks refuses it, and so is such a content type.

local M = {}

local PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"
local TITLE = "Too Many Requests"
local DETAIL = "A quota of this service is used up. Retry-After says how many seconds to wait, if waiting helps."
local PLAIN = "text/plain; charset=utf-8"
local SILENT = 444

local function fail(name, ...) error('rule "' .. name .. '": ' .. table.concat { ... }, 0) end

local function checked_status(status, least, most, name)
  if type(status) == "number" and status >= least and status <= most and status == math.floor(status) then
    return status
  end
  fail(name, "refuse has a status of ", tostring(status), ". It is a whole number from ", least, " to ", most, ".")
end

-- As the loader has it: https://host/... or /path, but not //host, and printable throughout.
local function checked_redirect(address, name)
  local plain = type(address) == "string" and not string.find(address, "[^!-~]")
  local scheme = plain and string.match(string.lower(address), "^(https?)://[^/?#]")
  if scheme or plain and string.find(address, "^/") and not string.find(address, "^//") then return address end
  fail(name, "refuse has a redirect that is no address. Write https://host/path or /path, without blanks.")
end

local function checked_type(found, name)
  if type(found) == "string" and string.find(found, "^[!-~]+/[!-~]+[ -~]*$") then return found end
  fail(name, "refuse has a type that is no content type. Write one such as text/plain or application/json.")
end

-- What a rule answers, of its `refuse` in the document (nil: it says nothing): { status, body, type, location }, where
-- body and location may be nil. An error if a response cannot be that.
function M.compile(refuse, name)
  refuse = refuse or {}
  if refuse.redirect then
    local location = checked_redirect(refuse.redirect, name)
    return { status = checked_status(refuse.status or 302, 300, 399, name), location = location }
  end
  local answer = { status = checked_status(refuse.status or 429, 200, 599, name) }
  if refuse.body then
    answer.body, answer.type = refuse.body, refuse.type and checked_type(refuse.type, name) or PLAIN
  end
  return answer
end

local function quality(parameters)
  local said = string.match(parameters, ";[ \t]*[qQ]=([%d.]+)")
  return said and tonumber(said) or 1
end

-- How much each kind is liked, and which place its first naming has.
local function liked(accept)
  local likes, places, place = {}, {}, 0
  for range, parameters in string.gmatch(string.lower(accept), "([^,; \t]+)([^,]*)") do
    place = place + 1
    if not likes[range] or quality(parameters) > likes[range] then likes[range] = quality(parameters) end
    places[range] = places[range] or place
  end
  return likes, places
end

-- Whether a client would rather have JSON than a page, from its Accept field (nil: it says nothing).
function M.wants_json(accept)
  if not accept or not string.find(accept, "[jJ][sS][oO][nN]") then return false end
  local likes, places = liked(accept)
  local json, problem = likes["application/json"] or 0, likes["application/problem+json"] or 0
  local best = math.max(json, problem)
  local page = likes["text/html"] or likes["text/*"] or likes["*/*"] or 0
  if best ~= page then return best > page end
  local named = places[json == best and "application/json" or "application/problem+json"]
  return best > 0 and (not places["text/html"] or named < places["text/html"])
end

local function escaped(character) return string.format("\\u%04x", string.byte(character)) end

local function json_text(text) return '"' .. string.gsub(text, '[%c"\\]', escaped) .. '"' end

local function problem(status, violated)
  local names = {}
  for i, name in ipairs(violated) do names[i] = json_text(name) end
  return '{"type":"' .. PROBLEM .. '","title":"' .. TITLE .. '","status":' .. status
    .. ',"detail":"' .. DETAIL .. '","violated-policies":[' .. table.concat(names, ",") .. "]}"
end

-- What is answered to this client: what the rule says, or a problem. `violated`: the names of the rules that refused.
function M.answer(compiled, violated, accept)
  local status = compiled.status
  if compiled.body or status < 400 or status == SILENT or not M.wants_json(accept) then return compiled end
  return { status = status, body = problem(status, violated), type = "application/problem+json" }
end

return M
