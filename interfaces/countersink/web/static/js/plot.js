// Loads the chart library uPlot, after the first numbers, and says when it cannot be loaded.

const PATH = "vendor/uplot/uPlot.iife.min.js";

let coming = null;

/** A promise, settled when `uPlot` is loaded; rejected if it cannot be: the numbers stay, without charts. */
export function plotting() {
  return (coming ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    const own = document.querySelector("script[src$='/js/dashboard.js']").src;
    script.src = new URL(`../${PATH}`, own);
    script.onload = done;
    script.onerror = () => {
      coming = null; // the next chart tries again
      script.remove();
      failed(new Error("The chart cannot be drawn: its script could not be loaded."));
    };
    document.head.append(script);
  }));
}
