// The page's one stream of live numbers (`/v1/live`): open while the page is visible, tried again
// after `AGAIN_MS`, with the reasons shown when it stops.

const AGAIN_MS = 5_000;
const NAME = /^[\w.:-]{1,64}$/; // an address may have names that no counter can have

/** Calls `heard(news)` about once a second and `lost(why)` when that stops. */
export class Live {
  #source = null;
  #counters = [];
  #timer = 0;
  #heard;
  #lost;

  constructor(heard, lost) {
    this.#heard = heard;
    this.#lost = lost;
    document.addEventListener("visibilitychange", () => this.#open());
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#open());
  }

  /** Set the counters of the stream, 100 at most; open it anew if they are others. */
  watch(counters) {
    const wanted = [...counters].filter((name) => NAME.test(name)).slice(0, 100).sort();
    if (this.#source && wanted.join() === this.#counters.join()) return;
    this.#counters = wanted;
    this.#open();
  }

  #open() {
    this.#close();
    if (document.hidden) return;
    const query = new URLSearchParams(this.#counters.map((name) => ["counter", name]));
    const source = new EventSource(`/v1/live?${query}`);
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.trouble) this.#lost("MySQL is away.");
      else this.#heard(news);
    };
    source.onerror = () => {
      // The stream ends every few minutes, and the browser opens another. Closed: it was refused.
      if (source.readyState === EventSource.CLOSED) {
        this.#lost("Live numbers have stopped.");
        this.#timer = setTimeout(() => this.#open(), AGAIN_MS);
      }
    };
    this.#source = source;
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
