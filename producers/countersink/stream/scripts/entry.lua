-- Functions in front of each script that returns entries: derived() is the id of an entry without an id field (see
-- entry.py), and fit() is the form of an entry for readers. It cuts an entry that is larger than a producer's can be:
-- to the first of each field that is read, and these to slightly more than their maximum, so that readers refuse it as
-- they would refuse it uncut. So a program with the right to XADD cannot make readers hold more than about 4 MiB of an
-- entry.
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

-- Returns the entry for readers (stream id, fields, false or the derived id of the uncut entry if cut), and its bytes.
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
