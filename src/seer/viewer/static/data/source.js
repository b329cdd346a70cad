// The sources of the page's data: the viewer's server, or the page itself if it is a shared file.

import { fromBase64 } from "./record.js";

/** An error from the server; `status` is 0 if the server did not answer. */
class SourceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Fetches from the server. It sends the token in a header, never in an address. */
export class HttpSource {
  constructor(token) {
    this.token = token;
    this.shared = false;
  }

  async #ask(path, options = {}) {
    let response;
    try {
      response = await fetch(path, {
        ...options,
        headers: { Authorization: `Bearer ${this.token}`, ...(options.headers ?? {}) },
        credentials: "omit",
        cache: "no-store",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new SourceError("the viewer does not answer; is it still running?", 0);
    }
    if (response.ok) return response;
    const found = await response.json().catch(() => ({}));
    throw new SourceError(String(found.error ?? response.statusText), response.status);
  }

  async #json(path) {
    return (await this.#ask(path)).json();
  }

  async #bytes(path) {
    return new Uint8Array(await (await this.#ask(path)).arrayBuffer());
  }

  #post(path, body) {
    return this.#ask(path, {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" },
    });
  }

  #run(id, rest = "") {
    return `api/runs/${encodeURIComponent(id)}${rest}`;
  }

  about() {
    return this.#json("api/about");
  }

  runs(query) {
    const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null);
    return this.#json(`api/runs?${new URLSearchParams(given)}`);
  }

  sweep() {
    return this.#json("api/sweep");
  }

  run(id) {
    return this.#json(this.#run(id));
  }

  /** Calls `take` with each batch of lines; returns when the run is over, or throws. */
  async stream(id, offsets, take, signal) {
    const query = new URLSearchParams(Object.entries(offsets));
    const response = await this.#ask(this.#run(id, `/stream?${query}`), { signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      const found = lines.filter((line) => line).map((line) => JSON.parse(line));
      if (found.length) take(found);
    }
  }

  line(id, kind, at) {
    return this.#json(this.#run(id, `/line?kind=${kind}&at=${at}`));
  }

  /** The fragments of lines, by kind and offset. */
  fragments(id, { events, calls }) {
    return this.#json(this.#run(id, `/fragments?events=${events}&calls=${calls}`));
  }

  /** Two texts as fragments, with their differences marked. */
  async difference(left, right) {
    return (await this.#post("api/difference", { left, right })).json();
  }

  async blob(id, digest) {
    return this.#bytes(this.#run(id, `/blob/${encodeURIComponent(digest)}`));
  }

  async artifact(id, name) {
    const path = name.split("/").map(encodeURIComponent).join("/");
    return this.#bytes(this.#run(id, `/artifact/${path}`));
  }

  notebook(id) {
    return this.#json(this.#run(id, "/notebook"));
  }

  /** The claims of the final report, with their verdicts. */
  claims(id) {
    return this.#json(this.#run(id, "/claims"));
  }

  verify(id) {
    return this.#json(this.#run(id, "/verify"));
  }

  async sharePreview(id, redaction) {
    return (await this.#post(this.#run(id, "/share"), { ...redaction, preview: true })).json();
  }

  async share(id, redaction) {
    return (await this.#post(this.#run(id, "/share"), redaction)).blob();
  }

  async control(id, request) {
    await this.#post(this.#run(id, "/control"), request);
  }
}

/** Reads the run that is embedded in the page. */
export class EmbeddedSource {
  constructor(record) {
    this.record = record;
    this.lines = new Map(record.lines.map((line) => [`${line.kind} ${line.at}`, line]));
    this.shared = true;
    this.id = String(record.run.run_id ?? "shared");
  }

  async about() {
    return { version: "", allow_control: false, folder: "" };
  }

  async run() {
    return { run: this.record.run, artifacts: [] };
  }

  async stream(id, offsets, take) {
    take([{ kind: "run", body: this.record.run }, ...this.record.lines, { kind: "end" }]);
  }

  #line(kind, at) {
    return this.lines.get(`${kind} ${at}`) ?? { body: {} };
  }

  async line(id, kind, at) {
    return this.#line(kind, at).body;
  }

  async fragments(id, wanted) {
    const found = {};
    for (const [kind, offsets] of Object.entries(wanted))
      found[kind] = Object.fromEntries(
        offsets.map((at) => [at, this.#line(kind, at).fragments ?? {}]),
      );
    return found;
  }

  async blob(id, digest) {
    const found = Object.hasOwn(this.record.blobs, digest) ? this.record.blobs[digest] : null;
    if (found === null) throw new SourceError("this part was left out of the shared file", 404);
    return fromBase64(found);
  }

  async notebook() {
    return this.record.notebook;
  }

  async claims() {
    return this.record.claims;
  }
}
