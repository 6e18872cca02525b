"use strict";
const send = document.getElementById("send");
send.addEventListener("click", async () => {
  const answer = document.getElementById("answer");
  send.disabled = true;
  answer.textContent = "…";
  const start = performance.now();
  try {
    const response = await fetch("predict", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: document.getElementById("body").value,
    });
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch {}
    answer.textContent = `${response.status}, ${Math.round(performance.now() - start)} ms\n${shown}`;
  } catch (error) {
    answer.textContent = String(error);
  }
  send.disabled = false;
});
