/* ---- Draw ---- */
panels.draw = (() => {
  let lines = [];                                 /* of points [x, y] in 0..1 */
  let digit = -1;                                 /* or one of the held-out digits */
  let pen = null, cursor = null, down = false;    /* pointer's line; the keyboard's pen */
  let hidden = new Float32Array(784), before = null, cell = null;
  let answer = null, filled = null, filling = 0, fills = 0, asks = 0, answered = 0, sheet;
  const any = () => lines.length > 0 || digit >= 0;

  function points() {
    const list = [];
    for (const line of lines) line.forEach(([x, y], k) => list.push(x, y, k ? 1 : 0));
    return list.slice(0, 3 * 4000);
  }
  function pixels() {
    const left = digit % 10 * 28, top = Math.floor(digit / 10) * 28, found = new Float32Array(784);
    for (let k = 0; k < 784; k++)
      found[k] = sheet[4 * ((top + Math.floor(k / 28)) * 280 + left + k % 28)] / 127.5 - 1;
    return found;
  }

  async function ask() {
    const mine = ++asks;
    if (!any()) answer = null;
    else {
      const given = digit >= 0 ? { pixels: pixels() } : { points: points() };
      const got = await worker("answers").ask("see", given);
      if (!got) return;
      answer = any() ? got : null;
    }
    answered = mine;
    paint();
    if (current === "fool") panels.fool.attack();
    else if (current === "draw" && !pen && mine === asks)
      say(answer ? `Softmax: ${$("label").textContent}. ${$("familiar").textContent}` : "");
  }
  function changed() {
    hidden.fill(0), before = null, stopFilling();
    paintPad(), ask(), writeUrl();
  }

  /* ---- the pad ---- */
  function paintPad() {
    const c = $("pad").getContext("2d"), size = 560;
    c.clearRect(0, 0, size, size);
    if (digit >= 0) {
      const small = document.createElement("canvas");
      small.width = small.height = 28;
      drawPixels(small, pixels());
      c.imageSmoothingEnabled = true, c.drawImage(small, 0, 0, size, size);
    }
    c.strokeStyle = c.fillStyle = colour("ink");
    c.lineWidth = 44, c.lineCap = c.lineJoin = "round";
    for (const line of lines) {
      c.beginPath();
      line.forEach(([x, y]) => c.lineTo(x * size, y * size));
      if (line.length === 1) c.lineTo(line[0][0] * size + .1, line[0][1] * size);
      c.stroke();
    }
    if (!any()) {
      c.font = "30px system-ui, sans-serif", c.textAlign = "center", c.fillStyle = colour("soft");
      c.fillText("Draw a digit, or anything else", size / 2, size / 2 + 10);
    }
    if (cursor && document.activeElement === $("pad")) {
      c.strokeStyle = colour("accent"), c.lineWidth = 4;
      c.beginPath(), c.arc(cursor[0] * size, cursor[1] * size, down ? 14 : 24, 0, 7), c.stroke();
    }
  }
  const near = ([ax, ay], [bx, by]) => Math.hypot(ax - bx, ay - by) < .016;
  const grid = (v) => Math.round(Math.min(1, Math.max(0, v)) * 511) / 511;
  function startLine(at) {
    if (stopStory() || digit >= 0) digit = -1, lines = [];
    pen = [at], lines.push(pen), changed();
  }
  function lift() {
    if (pen) pen = null, ask();                    /* again, for the announcement */
    down = false;
  }
  function padEvents() {
    const pad = $("pad");
    draws(pad, {
      down(event) {
        pad.focus({ focusVisible: false }), cursor = null, lift();
        startLine(within(event, pad).map(grid));
      },
      drag(event) {
        if (!pen) return;
        const all = event.getCoalescedEvents?.() ?? [];
        for (const e of all.length ? all : [event]) {
          const at = within(e, pad).map(grid);
          if (!near(at, pen.at(-1))) pen.push(at);
        }
        changed();
      },
      up: (mistaken) => mistaken ? undo() : lift(),
    });
    pad.onkeydown = (event) => {
      if (browsers(event)) return;
      const move = arrows[event.key];
      if (move) {
        cursor = (cursor ?? [.5, .5]).map((v, k) => grid(v + move[k] / 28));
        if (down && pen) pen.push(cursor), changed();
      } else if (event.key === " ") {
        cursor ??= [.5, .5];
        if (down) lift();
        else down = true, startLine(cursor);
      } else if (event.key === "Backspace") undo();
      else if (event.key === "Delete") clear();
      else if (/^[0-9]$/.test(event.key)) heldOut(Number(event.key));
      else return;
      event.preventDefault(), paintPad();
    };
    pad.onblur = () => { cursor = null, lift(), paintPad(); };
    $("clear").onclick = clear;
    $("undo").onclick = undo;
    $("heldout").onclick = () => heldOut();
    $("replay").onclick = tellStory;
  }
  function clear() { stopStory(), lift(), lines = [], digit = -1, changed(); }
  function undo() { stopStory(), lift(), lines.pop(), digit = -1, changed(); }
  /* Shows a held-out digit of a class, or of the next one. */
  function heldOut(label = digit < 0 ? 7 : (Math.floor(digit / 10) + 3) % 10) {
    const same = digit >= 0 && Math.floor(digit / 10) === label;
    stopStory(), lift(), lines = [];
    digit = label * 10 + (same ? (digit + 1) % 10 : (digit + 11) % 10), changed();
  }

  /* ---- the story: a seven is drawn, then a face; until the visitor draws ---- */
  const circle = (x, y, r, from, to) => Array.from({ length: 41 }, (_, k) => {
    const angle = from + (to - from) * k / 40;
    return [x + r * Math.cos(angle), y + r * Math.sin(angle)].map(grid);
  });
  const between = (corners) => corners.slice(1).flatMap(([x, y], k) =>
    Array.from({ length: 12 }, (_, t) => [corners[k][0] + (x - corners[k][0]) * t / 12,
      corners[k][1] + (y - corners[k][1]) * t / 12].map(grid)));
  const scenes = [
    [between([[.3, .32], [.32, .27], [.5, .26], [.66, .24], [.68, .3], [.58, .55], [.47, .84]])],
    [circle(.5, .5, .36, -1.57, 4.71), between([[.37, .36], [.37, .46]]),
      between([[.63, .36], [.63, .46]]), circle(.5, .5, .2, .5, 2.64)],
  ];
  let telling = 0, told = false;
  const invitation = "Your turn: softmax has to name a digit. Draw something else, so that it is " +
    "confident and wrong. Does familiarity reveal it?";
  function lead(text) { $("story").textContent = text; }
  /* Ends the story; returns true if the pad shows its drawing. */
  function stopStory() {
    const was = told;
    telling++, told = false;
    if (was) lead(invitation);
    return was;
  }
  async function tellStory() {
    const mine = ++telling, still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const wait = (ms) => new Promise((go) => setTimeout(go, ms));
    told = true;
    lift(), hidden.fill(0), before = null, stopFilling(), paint();
    for (const [k, scene] of scenes.entries()) {
      lines = [], digit = -1;
      lead(k ? "Next: a face." : "Two questions about a picture. First: a seven.");
      for (const line of scene) {
        lines.push([]);
        for (const at of line) {
          lines.at(-1).push(at), paintPad();
          if (!still) await wait(14);
          if (mine !== telling) return;
        }
      }
      await ask();
      if (mine !== telling || !answer) return;
      lead(`Softmax: ${$("label").textContent}. Familiarity: ` +
        (k && answer.verdict === 2 ? "unlike all training images." : $("verdict").textContent + "."));
      await wait(3000);
      if (mine !== telling) return;
    }
    lead($("story").textContent + " " + invitation);
    $("story").dataset.told = "yes";
  }

  /* ---- network input ---- */
  function paintSeen() {
    const canvas = $("seen"), shown = filled ?? before ?? answer?.seen;
    let most = 1e-9;
    if (answer) for (const v of answer.slope) most = Math.max(most, Math.abs(v));
    const over = $("slope").checked && answer && !before, soft = rgb("soft");
    const well = rgb("well");
    drawPixels(canvas, shown ?? new Float32Array(784).fill(-1), 0, (k, c) => {
      if (hidden[k] && !filled) return mix(well, soft, (k + Math.floor(k / 28)) % 2 ? .75 : .5);
      if (cell && k === cell[1] * 28 + cell[0]) return rgb("accent");
      return over ? signed(c, answer.slope[k], most * .7) : c;
    });
    const some = hidden.some((v) => v);
    $("fill").disabled = !some || filling > 0;
    $("unhide").disabled = !some;
    $("fill").classList.toggle("main", some && !filled);
    $("seen-note").textContent = filling ? "Chains sample the missing part."
      : filled ? "Ten samples of the missing part; the first is above."
      : over ? "More ink in blue areas, or less in orange ones, increases f(x)."
      : "Erase a part, and let the network fill it in.";
  }
  function hide(x, y) {
    if (!answer || filling || answered !== asks) return;      /* of another picture */
    stopStory();
    if (filled) stopFilling(), ask();              /* the answer was for the filled picture */
    before ??= answer.seen;
    for (let k = 0; k < 784; k++)
      if (Math.hypot(k % 28 + .5 - x, Math.floor(k / 28) + .5 - y) < 2.4) hidden[k] = 1;
    paintSeen(), writeUrl();
  }
  /* Stops filling in, and discards its result, which may be unfinished. */
  function stopFilling() {
    if (filling) worker("chains").anew();
    filling = 0, filled = null, $("ways").hidden = true;
  }
  function paintWays(shown) {
    const ways = $("ways");
    if (!ways.children.length)
      for (let k = 0; k < 10; k++) {
        const canvas = document.createElement("canvas");
        canvas.width = canvas.height = 28, canvas.className = "pixels";
        ways.append(canvas);
      }
    ways.hidden = false;
    [...ways.children].forEach((canvas, k) => drawPixels(canvas, shown, 784 * k));
    filled = shown.slice(0, 784), paintSeen();
  }
  async function fill() {
    const mine = filling = ++fills;
    paintSeen();
    const seen = before ?? answer.seen;
    const got = await worker("chains").ask("fill", { seen, hidden, ways: 10, seed: mine },
      { tell: ({ shown }) => { if (filling === mine) paintWays(shown); } });
    if (filling !== mine) return;
    filling = 0;
    if (!got) return stopFilling(), paintSeen();
    paintWays(got.shown);
    const shown = filled;
    const again = await worker("answers").ask("see", { pixels: shown });
    if (again && filled === shown) answer = { ...again, seen: before ?? seen }, paintAnswer(), paintSeen();
  }
  function seenEvents() {
    const canvas = $("seen");
    const at = (event) => hide(...within(event, canvas).map((v) => v * 28));
    draws(canvas, { down: (event) => { cell = null, at(event); }, drag: at });
    canvas.onkeydown = (event) => {
      if (browsers(event)) return;
      const move = arrows[event.key];
      if (move) cell = (cell ?? [14, 14]).map((v, k) => Math.min(27, Math.max(0, v + move[k])));
      else if (event.key === " " && cell) hide(cell[0] + .5, cell[1] + .5);
      else return;
      event.preventDefault(), paintSeen();
    };
    canvas.onblur = () => { cell = null, paintSeen(); };
    $("slope").onchange = () => { paintSeen(), writeUrl(); };
    $("fill").onclick = fill;
    $("unhide").onclick = changed;
  }

  /* ---- the answer ---- */
  function paintAnswer() {
    const seen = answer && verdicts[answer.verdict];
    $("label").textContent = answer ? `${words[answer.label]}, ${percent(answer.p)}` : "\u2026";
    for (const name of ["label", "familiar", "logp", "ms"])
      $("label").dataset[name] = answer?.[name] ?? "";
    bars($("bars"), answer?.chance);
    $("verdict").textContent = seen ? seen.name : "\u2026";
    $("verdict").dataset.verdict = seen ? seen.name : "";
    paintVerdict($("verdict"), answer?.verdict);
    $("familiar").textContent = seen ? seen.says(percent(answer.familiar), answer.reason)
      : "Does the picture resemble the training images?";
    gauge();
  }
  /* Draws the fraction of known digits that are less typical, from 0.1% to all, and verdicts. */
  function gauge() {
    const canvas = $("gauge"), { c, w, h } = fit(canvas, 74);
    if (!w) return;
    const px = (share) => w * (1 + Math.log10(Math.max(share, .001)) / 3);
    const zones = [["strange", .001, .01], ["odd", .01, .1], ["familiar", .1, 1]];
    zones.forEach(([name, from, to], k) => {
      const left = px(from) + (k ? 2 : 0);
      c.fillStyle = colour(name);
      c.globalAlpha = answer && verdicts[answer.verdict].name !== name ? .3 : 1;
      c.fillRect(left, 22, px(to) - left, 16);
      c.globalAlpha = 1, c.fillStyle = colour("soft"), c.textAlign = "center";
      c.fillText(name, (left + px(to)) / 2, h - 20);
    });
    c.textAlign = "left", c.fillText("0", 0, h - 2);
    c.textAlign = "center", c.fillText("1%", px(.01), h - 2), c.fillText("10%", px(.1), h - 2);
    c.textAlign = "right", c.fillText("100%", w, h - 2);
    canvas.setAttribute("aria-label", "Familiarity");
    if (!answer || answer.familiar < 0) return;
    const x = Math.min(w - 6, Math.max(6, px(answer.familiar)));
    c.fillStyle = colour("ink");
    c.beginPath(), c.moveTo(x - 7, 6), c.lineTo(x + 7, 6), c.lineTo(x, 20), c.fill();
    c.fillRect(x - 1.5, 18, 3, 22);
    canvas.setAttribute("aria-label", `${(100 * answer.familiar).toFixed(1)}% of known digits ` +
      `are less typical: ${verdicts[answer.verdict].name}`);
  }
  function paint() { paintPad(), paintSeen(), paintAnswer(); }

  /* ---- the URL: a point of a line is three letters, 512 x 512 ---- */
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const pack = (all) => all.map((line) => line.map(([x, y]) => {
    const v = Math.round(x * 511) * 512 + Math.round(y * 511);
    return letters[v >> 12] + letters[v >> 6 & 63] + letters[v & 63];
  }).join("")).join(".");
  const unpack = (text) => text.split(".").filter((l) => l).map((line) =>
    (line.match(/.../g) ?? []).map((three) => {
      const v = [...three].reduce((sum, l) => sum * 64 + Math.max(0, letters.indexOf(l)), 0);
      return [(v >> 9) / 511, (v & 511) / 511];
    })).filter((line) => line.length);
  function packBits(bits) {
    let text = "";
    for (let k = 0; k < 784; k += 6) {
      let v = 0;
      for (let j = 0; j < 6; j++) v = 2 * v + (bits[k + j] ? 1 : 0);
      text += letters[v];
    }
    return text.replace(/A+/g, (run) => (run.length > 3 ? `~${run.length}~` : run));
  }
  function unpackBits(text) {
    const bits = new Float32Array(784);
    const all = text.replace(/~(\d{1,3})~/g, (run, n) => "A".repeat(Number(n)));
    [...all].slice(0, 131).forEach((l, k) => {
      const v = letters.indexOf(l);
      for (let j = 0; j < 6; j++) if (6 * k + j < 784) bits[6 * k + j] = v >> (5 - j) & 1;
    });
    return bits;
  }
  const drawing = () => ({ ink: lines.length && !told ? pack(lines) : undefined,
    digit: digit >= 0 ? digit : undefined });
  function setDrawing({ ink, digit: number }) {
    if (ink === undefined && number === undefined) return;
    lines = ink ? unpack(ink) : [];
    digit = number !== undefined && number >= 0 && number < 100 ? Math.floor(number) : -1;
    hidden.fill(0), before = null, stopFilling();
  }
  return {
    drawing, setDrawing, heldOut, ask,
    answer: () => answer,
    begin() {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 280;
      const c = canvas.getContext("2d");
      c.drawImage($("digits"), 0, 0), sheet = c.getImageData(0, 0, 280, 280).data;
      padEvents(), seenEvents(), bars($("bars"));
    },
    async show(state) {
      if (Object.keys(state).length) stopStory();
      setDrawing(state);
      if (Object.keys(state).length) $("slope").checked = state.slope === "1";
      paint();
      if (!location.hash && !any()) return tellStory();
      await ask();
      if (state.hide && answer) before = answer.seen, hidden = unpackBits(state.hide), paintSeen();
    },
    hide() { stopStory(), stopFilling(); },
    paint,
    state: () => ({ ...drawing(), slope: $("slope").checked ? 1 : undefined,
      hide: hidden.some((v) => v) ? packBits(hidden) : undefined }),
  };
})();
