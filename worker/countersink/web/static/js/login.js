// Says that a login failed. The form itself needs no script.
if (new URLSearchParams(location.search).has("wrong")) {
  const why = document.getElementById("why");
  why.textContent = "This key does not open the dashboard: it is mistyped, has expired or was revoked, or may not read.";
  why.hidden = false;
}
