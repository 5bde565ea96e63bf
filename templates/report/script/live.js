// Ask the server for a newer page every five seconds, while somebody can see this one.

const EVERY_MS = 5000;
const tag = document.documentElement.dataset.tag;

async function look() {
  if (document.visibilityState !== "visible" || location.protocol === "file:") return; // a saved page
  try {
    const answer = await fetch(location.pathname + location.search, { method: "HEAD", headers: { "If-None-Match": tag }, cache: "no-store" });
    document.body.classList.toggle("away", !answer.ok && answer.status !== 304);
    if (answer.status === 200) location.reload();
  } catch {
    document.body.classList.add("away");
  }
}

setInterval(look, EVERY_MS);
document.addEventListener("visibilitychange", look);
