const settings = /*SETTINGS*/null;
const by = id => document.getElementById(id);
const has = name => settings.signatures.includes(name);
const HINT = "Point at a word, or move to it with Tab and the arrow keys, to see its attention.";
// run and choice count the translations and the changes of the shown one, so that late answers are
// ignored. requested is the text that is being translated, and typed the text of the shown
// translation, as in the text field. Both may be null. line is the chosen line of a translation of
// several lines, or null. around is the white space before and after a text of one line.
const state = { run: 0, choice: 0, requested: null, typed: null, around: [], line: null, text: "", ranked: [], attention: null };

by("name").textContent = settings.name;
by("version").textContent = `version ${settings.version}`;
document.title = `${settings.name} – Translate`;

async function predict(signature, inputs) {
  const url = `/v1/models/${encodeURIComponent(settings.name)}:predict`;
  const body = JSON.stringify({ signature_name: signature, inputs });
  let response;
  try {
    response = await fetch(url, {
      method: "POST", body, headers: { "Content-Type": "application/json" },
      signal: AbortSignal.timeout((settings.timeout + 5) * 1000),
    });
  } catch (error) {
    throw new Error(error.name === "TimeoutError"
      ? "The server did not answer in time. Try a shorter text."
      : "The server cannot be reached. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok && answer.outputs) return answer.outputs;
  if (response.ok) throw new Error("The server's answer is incomplete. Try again.");
  if (response.status === 503) {
    throw new Error("The server is busy. Try again in a moment.");
  }
  if (response.status === 504) throw new Error("The server did not answer in time. Try a shorter text.");
  if (response.status >= 500) throw new Error("The server failed. Its log has the details.");
  throw new Error(answer.error || `The server answered with status ${response.status}.`);
}

// The server counts code points.
const length = text => [...text].length;

// Each line is a separate text for the server.
function count() {
  const lines = by("source").value.split("\n");
  const used = Math.max(...lines.map(line => length(line.trim())));
  const over = used > settings.maxLength;
  by("count").textContent = `${used.toLocaleString("en")} of ${settings.maxLength.toLocaleString("en")} characters`
    + (lines.length > 1 ? " in the longest line" : "");
  by("count").classList.toggle("over", over);
  by("source").setAttribute("aria-invalid", String(over));
  return over;
}

function showMessage(message) {
  by("message").textContent = message;
  by("message").hidden = !message;
}

function clear() {
  state.choice += 1;
  for (const id of ["attention-card", "n-best-card", "warnings"]) by(id).hidden = true;
  for (const id of ["copy", "several", "stale"]) by(id).hidden = true;
  state.typed = null;
  by("best").textContent = "The translation appears here.";
  by("best").classList.add("empty");
}

function showBest(text) {
  const [before, after] = state.around;
  by("best").textContent = text ? before + text + after : "(empty translation)";
  by("best").classList.toggle("empty", !text);
  by("copy").hidden = !text;
}

function markStale() {
  by("stale").hidden = state.typed === null || by("source").value === state.typed;
}

function setRequested(text) {
  const busy = text !== null;
  state.requested = text;
  by("working").textContent = busy ? "Translating…" : "";
  by("pair").classList.toggle("busy", busy);
  by("pair").setAttribute("aria-busy", String(busy));
}

async function translate() {
  const typed = by("source").value;
  const lines = typed.split("\n").map(line => line.trim());
  const filled = lines.filter(Boolean);
  if (typed === state.requested) return;
  const run = ++state.run;
  setRequested(null);
  showMessage("");
  if (count()) {
    clear();
    const longest = Math.max(...lines.map(length)).toLocaleString("en");
    showMessage(`A line has ${longest} characters, but at most ${settings.maxLength.toLocaleString("en")} are allowed. Divide it into several lines.`);
    return;
  }
  if (!filled.length) {
    clear();
    showMessage("Type a sentence first.");
    return;
  }
  if (filled.length > settings.maxTexts) {
    clear();
    showMessage(`The text has ${filled.length} lines, but at most ${settings.maxTexts} are allowed.`);
    return;
  }
  setRequested(typed);
  try {
    if (filled.length > 1) {
      const found = await predict("serving_default", { inputs: filled });
      if (run !== state.run) return;
      clear();
      showLines(typed.split("\n"), found);
    } else {
      const found = await candidates(filled[0]);
      if (run !== state.run) return;
      Object.assign(state, { around: typed.split(filled[0]), line: null, text: filled[0], ranked: found.ranked });
      showWarnings([found.warnings]);
      by("several").hidden = true;
      listRanked();
      choose(0);
    }
    state.typed = typed;
    markStale();
  } catch (error) {
    if (run !== state.run) return;
    clear();
    showMessage(error.message);
  } finally {
    if (run === state.run) setRequested(null);
  }
}

// Shows one translation per line. Blank lines, and white space around lines, stay as they are.
function showLines(lines, { translations, warnings = [] }) {
  let next = 0;
  const shown = lines.map(line => line.trim() && lineButton(line.trim(), translations[next++]));
  const rows = lines.map((line, n) => {
    const [before, after] = shown[n] ? line.split(line.trim()) : [line, ""];
    return ["\n", before, shown[n], after];
  });
  by("best").replaceChildren(...rows.flat().slice(1));
  by("best").classList.remove("empty");
  by("copy").hidden = false;
  moveByArrows(by("best"), shown.filter(Boolean));
  showWarnings(warnings);
  by("several").hidden = false;
}

// Shows each warning about any of several texts once.
function showWarnings(warnings) {
  const shown = [...new Set(warnings.flat())];
  by("warnings").textContent = shown.map(each => `Warning: ${each}.`).join(" ");
  by("warnings").hidden = !shown.length;
}

// A button would keep its text from being selected.
function lineButton(line, translation) {
  const made = span("line", translation);
  made.setAttribute("role", "button");
  made.setAttribute("aria-pressed", "false");
  made.addEventListener("click", () => { if (getSelection().isCollapsed) chooseLine(made, line); });
  made.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    chooseLine(made, line);
  });
  return made;
}

async function chooseLine(line, text) {
  const choice = ++state.choice;
  showMessage("");
  for (const id of ["attention-card", "n-best-card"]) by(id).hidden = true;
  by("best").querySelectorAll(".line").forEach(each => each.setAttribute("aria-pressed", String(each === line)));
  try {
    const { ranked } = await candidates(text);
    if (choice !== state.choice) return;
    Object.assign(state, { line, text, ranked });
    listRanked();
    choose(0);
    by("n-best-card").scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (choice === state.choice) showMessage(error.message);
  }
}

async function candidates(text) {
  if (!has("translate_n_best")) {
    const found = await predict("serving_default", { inputs: [text] });
    const { translations: [text], scores: [score], warnings: [warnings] = [[]] } = found;
    return { ranked: [{ text, score }], warnings };
  }
  const found = await predict("translate_n_best", { inputs: [text] });
  // Exports made before release 0.1 lack some outputs.
  const { translations: [texts], scores: [scores], counts: [count] = [1], warnings: [warnings] = [[]] } = found;
  const ranked = texts.slice(0, count).map((each, n) => ({ text: each, score: scores[n] }));
  return { ranked, warnings };
}

function listRanked() {
  by("n-best").replaceChildren(...state.ranked.map(({ text, score }, n) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(span("rank", n + 1), span("text", text || "(empty)"), span("score", score.toFixed(3)));
    button.addEventListener("click", () => choose(n));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  by("n-best-card").hidden = false;
}

function span(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  if (name === "text") Object.assign(made, { dir: "auto", lang: "" });
  return made;
}

async function choose(n) {
  const choice = ++state.choice;
  const { text } = state.ranked[n];
  if (state.line) state.line.textContent = text;
  else showBest(text);
  by("n-best").querySelectorAll("button").forEach((button, i) =>
    button.setAttribute("aria-pressed", String(i === n)));
  state.attention = null;
  by("attention-card").hidden = true;
  if (!has("attend") || !text) return;
  try {
    const found = await predict("attend", { inputs: [state.text], targets: [text] });
    if (choice !== state.choice) return;
    state.attention = trimmed(found);
    by("attention-cut").hidden = !found.truncated?.[0];
    drawWords();
  } catch (error) {
    if (choice !== state.choice) return;
    showMessage(`Attention is not available: ${error.message}`);
  }
}

// Removes the padding at the ends of rows.
function trimmed({ source_pieces: [source], target_pieces: [target], attention: [rows] }) {
  const end = pieces => pieces.findLastIndex(Boolean) + 1;
  const [s, t] = [end(source), end(target)];
  return { source: source.slice(0, s), target: target.slice(0, t), rows: rows.slice(0, t).map(row => row.slice(0, s)) };
}

// Groups the indices of subwords by word. A space belongs to the word after it.
function words(pieces) {
  const groups = [];
  let open = false;
  pieces.forEach((piece, i) => {
    if (!open || (/^\s/.test(piece) && /\S/.test(pieces.slice(groups.at(-1)[0], i).join("")))) groups.push([]);
    groups.at(-1).push(i);
    open = true;
  });
  return groups;
}

function drawWords() {
  const { source, target, rows } = state.attention;
  const group = by("pieces").checked ? pieces => pieces.map((_, i) => [i]) : words;
  const [from, to] = [group(source), group(target)];
  // Attention to a word is the sum over its subwords; attention from it is the mean.
  const table = to.map(t => from.map(s =>
    t.reduce((sum, i) => sum + s.reduce((part, j) => part + rows[i][j], 0), 0) / t.length));
  const text = (pieces, indices) => indices.map(i => pieces[i]).join("").trim() || "\u2423";
  const sides = { source: from.map(each => text(source, each)), target: to.map(each => text(target, each)) };
  const buttons = {};
  for (const side of ["source", "target"]) {
    buttons[side] = sides[side].map((word, n) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "word";
      button.textContent = word;
      for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, () => mark(side, n));
      for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => mark(null));
      return button;
    });
    by(`${side}-words`).replaceChildren(...buttons[side]);
    moveByArrows(by(`${side}-words`), buttons[side]);
  }
  function mark(side, n) {
    for (const each of ["source", "target"]) {
      buttons[each].forEach((button, i) => {
        const weight = side && side !== each ? (each === "source" ? table[n][i] : table[i][n]) : 0;
        button.classList.toggle("on", each === side && i === n);
        button.style.background = weight > .005 ? `rgba(var(--mark), ${Math.min(.08 + .62 * weight, .7)})` : "";
        button.textContent = sides[each][i];
        if (weight >= .05) {
          const share = document.createElement("small");
          share.textContent = `${Math.round(100 * weight)}%`;
          button.append(share);
        }
      });
    }
    by("summary").textContent = side ? summary(side, n) : HINT;
  }
  function summary(side, n) {
    const other = side === "target" ? "source" : "target";
    const best = sides[other]
      .map((word, i) => [side === "target" ? table[n][i] : table[i][n], word])
      .sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([weight]) => weight >= .01)
      .map(([weight, word]) => `${word} ${Math.round(100 * weight)}%`);
    const verb = side === "target" ? "attends to" : "is attended to by";
    return `${sides[side][n]} ${verb} ${best.join(", ") || "no word in particular"}`;
  }
  mark(null);
  by("attention-card").hidden = false;
}

// Makes a group of buttons a single tab stop. The arrow keys move to its other buttons.
function moveByArrows(row, buttons) {
  buttons.forEach((button, n) => { button.tabIndex = n ? -1 : 0; });
  const forward = getComputedStyle(row).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  row.onkeydown = event => {
    if (!/^Arrow/.test(event.key)) return;
    const from = buttons.indexOf(document.activeElement);
    const next = buttons[from + (event.key === forward || event.key === "ArrowDown" ? 1 : -1)];
    if (from < 0 || !next) return;
    event.preventDefault();
    buttons[from].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
}

async function copy() {
  const range = document.createRange();
  range.selectNodeContents(by("best"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  let result = "Copied";
  try {
    // Browsers offer the clipboard only to pages from localhost or over HTTPS.
    if (navigator.clipboard) await navigator.clipboard.writeText(by("best").textContent);
    else document.execCommand("copy");
    getSelection().removeAllRanges();
  } catch {
    result = "Press Ctrl+C";  // the translation stays selected
  }
  by("copy").textContent = result;
  setTimeout(() => { by("copy").textContent = "Copy"; }, 2000);
}

by("form").addEventListener("submit", event => {
  event.preventDefault();
  translate();
});
by("copy").addEventListener("click", copy);
by("source").addEventListener("input", () => { count(); markStale(); });
by("source").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    translate();
  }
});
by("pieces").addEventListener("change", () => { if (state.attention) drawWords(); });
count();
