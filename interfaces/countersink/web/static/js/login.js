// The login page: the texts for each reason why a login failed (by status), and the view that is
// opened after it. The form itself needs no script.
const WHY = new Map([
  ["1", "This key does not open the dashboard: it is mistyped, has expired or was revoked, or lacks the scope read."],
  ["403", "The browser reports that another site sent the form: log in at this server's own address. A proxy in front of it must pass on the Host header."],
  ["429", "Too many wrong keys, or requests, came from your address: wait a minute, then try again."],
  ["503", "MySQL or Redis is away or busy: try again in a moment."],
]);

const wrong = new URLSearchParams(location.search).get("wrong");
if (wrong !== null) {
  const why = document.getElementById("why");
  why.textContent = WHY.get(wrong) ?? "The login did not work: enter the key again.";
  why.hidden = false;
}

// Browsers take the part after # along from one address to the one it leads to: from a view to this
// page, by the form's address over a wrong key, and to the view at last. The path stays our own.
const form = document.querySelector("form");
if (location.hash.startsWith("#/")) form.action = `/login${location.hash}`;

// `countersink up` prints the address of this page with a key behind the #. It does not stay there:
// the address would go into the browser's history.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key !== null) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("key").value = key;
  form.requestSubmit();
}
