-- Keeps the units of a sliding log outside of any server: a plain list by number, so that it cannot share a
-- mistake with the rings it is compared with.
local units = {}

return function(state)
  if not state.entry then units = {} end
  if state.append then
    for number = state.head - state.append, state.head - 1 do units[number] = state.newest_us end
  elseif state.fill_us then
    for number = state.cut - 1, state.tail, -1 do units[number + state.cut_count] = units[number] end
    for number = state.tail, state.tail + state.cut_count - 1 do units[number] = state.fill_us end
  elseif state.cut then
    for number = state.cut, state.head - 1 do units[number] = units[number + state.cut_count] end
  end
  state.append, state.cut, state.cut_count, state.fill_us = nil, nil, nil, nil
  state.entry = function(number) return units[number] end
  return state
end
