// Fetches parts of a run when they come into view, and caches them.

const MOST = 4000; // lines whose fragments are cached
const TOGETHER = 100; // lines per request
const LARGE = 4_000_000; // bytes; a larger blob is not cached
const decoder = new TextDecoder("utf-8", { fatal: false });

/** Blobs and fragments of the run `id`. */
export class Fetcher {
  #rendered = new Map();
  #wanted = [];

  constructor(source, id) {
    this.source = source;
    this.id = id;
    this.kept = new Map();
    this.blob = this.blob.bind(this);
  }

  /** The bytes of a blob. */
  async blob(digest) {
    if (!this.kept.has(digest)) {
      const asked = this.source.blob(this.id, digest);
      this.kept.set(digest, asked);
      asked.then(
        (data) => data.byteLength > LARGE && this.kept.delete(digest),
        () => this.kept.delete(digest),
      );
    }
    return this.kept.get(digest);
  }

  /** The claims of the run's final report, requested once. */
  claims() {
    this.checked ??= this.source.claims(this.id);
    return this.checked;
  }

  async text(reference) {
    return decoder.decode(await this.blob(reference.digest));
  }

  /** The fragments of a line, or a promise of them if they are not cached. */
  fragments(kind, at) {
    const key = `${kind} ${at}`;
    if (!this.#rendered.has(key)) {
      if (this.#rendered.size > MOST) this.#rendered.clear();
      const asked = new Promise((resolve, reject) => {
        if (!this.#wanted.length) setTimeout(() => this.#ask(), 0);
        this.#wanted.push({ kind, at, resolve, reject });
      });
      this.#rendered.set(key, asked);
      asked.then(
        (found) => this.#rendered.set(key, found),
        () => this.#rendered.delete(key),
      );
    }
    return this.#rendered.get(key);
  }

  // One request fetches all lines that came into view together.
  async #ask() {
    const wanted = this.#wanted.splice(0, TOGETHER);
    if (this.#wanted.length) setTimeout(() => this.#ask(), 0);
    const offsets = { events: [], calls: [] };
    for (const { kind, at } of wanted) offsets[kind].push(at);
    try {
      const found = await this.source.fragments(this.id, offsets);
      for (const { kind, at, resolve } of wanted) resolve(found[kind][at] ?? {});
    } catch (error) {
      for (const { reject } of wanted) reject(error);
    }
  }
}
