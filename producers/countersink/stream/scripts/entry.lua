-- In front of each script that hands out entries: derived() is an entry's id if it came without one (see entry.py), and
-- fit() is what readers get of an entry. Larger than any of ours, it comes cut: of the fields that are read, the first
-- of each name, and of each a little more than it may have, so that who reads it refuses it as he would the whole.
-- Whoever may XADD can thus not make readers hold more than 4 MiB or so of an entry.
local LARGEST = 4 * 1024 * 1024 + 65536
local MOST_FIELDS = 64
local READ = { v = 64, id = 64, at = 64, rows = 4 * 1024 * 1024 + 1 }

local function derived(stream, stream_id, fields)
  local parts = { #stream .. ':' .. stream, #stream_id .. ':' .. stream_id }
  for i = 1, #fields do
    parts[#parts + 1] = #fields[i] .. ':' .. fields[i]
  end
  return string.sub(redis.sha1hex(table.concat(parts)), 1, 32)
end

-- Returns what is handed out (stream id, fields, false or the id of the whole entry if it was cut), and its bytes.
local function fit(stream, entry)
  local fields, size = entry[2], 0
  for i = 1, #fields do
    size = size + #fields[i]
  end
  if size <= LARGEST and #fields <= 2 * MOST_FIELDS then
    return { entry[1], fields, false }, size
  end
  local cut, seen = {}, {}
  size = 0
  for i = 1, #fields, 2 do
    local name = fields[i]
    if READ[name] and not seen[name] then
      seen[name] = true
      cut[#cut + 1] = name
      cut[#cut + 1] = string.sub(fields[i + 1], 1, READ[name])
      size = size + #cut[#cut]
    end
  end
  return { entry[1], cut, derived(stream, entry[1], fields) }, size
end
