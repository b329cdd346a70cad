// The access token: read from the address once, kept for this tab, and passed to new tabs.

const KEY = "seer-token";
const CHANNEL = "seer-viewer";

/** The token, or null. It is removed from the address, so that copying the address is safe. */
export async function takeToken() {
  const found = /^#token=([\w-]+)(?:&run=([\w.-]+))?$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", `${location.pathname}#/${found[2] ? `run/${found[2]}` : ""}`);
  }
  const token = sessionStorage.getItem(KEY) ?? (await askOtherTabs());
  if (token) {
    sessionStorage.setItem(KEY, token);
    answerOtherTabs(token);
  }
  return token;
}

// Only pages of the same origin receive the channel's messages, and they may have the token.
function askOtherTabs() {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    const timer = setTimeout(() => (channel.close(), resolve(null)), 300);
    channel.onmessage = ({ data }) => {
      if (typeof data?.token !== "string") return;
      clearTimeout(timer);
      channel.close();
      resolve(data.token);
    };
    channel.postMessage({ ask: true });
  });
}

function answerOtherTabs(token) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }) => {
    if (data?.ask) channel.postMessage({ token });
  };
}
