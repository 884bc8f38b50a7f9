// Says why a login failed. The form itself needs no script.
const REASONS = {
  key: "This is no key that is in force: look for a typing error, or whether it has expired.",
  scope: "This key may not read: the dashboard needs one with the scope read or admin.",
  wait: "Too many wrong keys came from here: wait a minute.",
};
const why = new URLSearchParams(location.search).get("error");
if (why) {
  const shown = document.getElementById("why");
  shown.textContent = REASONS[why] ?? REASONS.key;
  shown.hidden = false;
}
