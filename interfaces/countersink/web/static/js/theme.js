// Dark or light colours: as the system says or as somebody chose; the colours are in `css/`. Runs
// before anything is drawn.
(() => {
  const NAME = "countersink-theme";
  let chosen = null;
  try {
    chosen = localStorage.getItem(NAME);
  } catch {
    // storage may be forbidden: the choice then lasts as long as the page
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const isDark = chosen ? chosen === "dark" : dark.matches;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    dispatchEvent(new CustomEvent("theme", { detail: { dark: isDark } }));
  };
  dark.addEventListener("change", apply);
  window.toggleTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(NAME, chosen);
    } catch {
      // as above
    }
    apply();
  };
  apply();
})();
