// Before the first paint: the theme that was chosen last, or the system's.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("theme"); } catch { /* a browser without storage */ }
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
