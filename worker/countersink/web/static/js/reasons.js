// Why something could not be counted, in plain words, and what to do about it. The codes are those
// of `countersink dead`.

const SENDER = "Mend what sends it, then drop this: as it is it can never be counted.";
const ENTRY = "Something that is no producer of ours, or a broken one, writes to the queue. Mend it, then drop this.";
const AGAIN = "Count it only if you are sure that it was not counted: Retry adds it once more.";

const REASONS = new Map([
  ["bad_counter", ["No counter can have this name", "Names have 1 to 64 characters of A-Z a-z 0-9 _ . : -.", SENDER]],
  ["bad_key", ["No key can be like this", "A key is text, to be written as UTF-8.", SENDER]],
  ["bad_minute", ["The time is none", "It is before 1970, after 9999, or no number.", SENDER]],
  ["bad_amount", ["The amount is none", "It is no whole number of 64 bits.", SENDER]],
  ["not_a_row", ["Not an increment", "An increment is a counter, a key, a minute and an amount.", SENDER]],
  ["too_large", ["Too large to be read", "The entry has more bytes than are read at once.", "Let the sender split its entries, then drop this."]],
  ["too_many_rows", ["Too many increments in one entry", "More than are read at once.", "Let the sender split its entries, then drop this."]],
  ["not_json", ["Not to be read", "The increments of this entry are no JSON.", ENTRY]],
  ["not_rows", ["Not to be read", "The entry holds something else than a list of increments.", ENTRY]],
  ["no_rows", ["No entry of countersink's", "It has no increments in it.", ENTRY]],
  ["bad_version", ["Not to be read", "The entry does not say which format it has.", ENTRY]],
  ["bad_id", ["Not to be read", "The entry's id is none.", ENTRY]],
  ["bad_at", ["Not to be read", "The entry does not say when it was sent.", ENTRY]],
  ["newer_version", ["Sent by a newer version", "The sender is newer than the workers here.", "Upgrade the workers, then press Retry."]],
  ["out_of_range", ["The total would be too large", "With this amount the total would not fit into 64 bits.", "Retry it once the total has room for it, or drop it."]],
  ["too_long", ["Too long for the table", "The database does not take a text of this length.", SENDER]],
  ["wrong_encoding", ["The text is not UTF-8", "The database does not take what is in the key.", SENDER]],
  ["too_old", ["Too old to be sure of", "It was first sent so long ago that nobody can tell any more whether it was counted.", AGAIN]],
  ["reconciled", ["Its day was set from a log", "A backfill has set this day to what a log says, which may have this in it already.", AGAIN]],
  ["tracked_counter", ["This counter follows a table", "Only the table's own triggers count it.", "Send to another counter, then drop this."]],
  ["unknown_counter", ["Nobody has made this counter", "The workers count only counters that exist (strict).", "Make it with “countersink counter set”, then press Retry; or drop this."]],
]);

/** { title, what, todo } of a reason's code. */
export function reasonOf(code) {
  const [title, what, todo] = REASONS.get(code) ?? ["It could not be counted", "The details say why.", "Retry it once its cause is mended, or drop it."];
  return { title, what, todo };
}
