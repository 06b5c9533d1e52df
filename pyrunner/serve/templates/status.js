(() => {
  "use strict";
  const every = 1000 * Number(document.documentElement.dataset.refresh);
  const main = document.getElementById("main");
  const made = document.getElementById("made");
  const note = document.getElementById("note");
  const live = document.getElementById("live");
  const button = document.getElementById("pause");
  let paused = false;
  let timer = 0;

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  // the reader keeps what is open, where the focus is and how far things are scrolled
  const swap = (page) => {
    const fresh = page.getElementById("main");
    const selection = getSelection();
    if (!fresh) throw new Error("this is another page");
    if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return;
    const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
    const place = [scrollX, scrollY];
    const scrolled = [];
    for (const element of main.querySelectorAll("details[id], .wide[id]")) {
      const next = page.getElementById(element.id);
      if (!next) continue;
      if (element.localName === "details") next.open = element.open;
      else scrolled.push([element.id, element.scrollLeft]);
    }
    main.replaceChildren(...fresh.childNodes);
    for (const [id, left] of scrolled) document.getElementById(id).scrollLeft = left;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    scrollTo(...place);
    document.title = page.title;
    made.replaceChildren(...page.getElementById("made").childNodes);
    say(live, document.getElementById("verdict").textContent.trim());
  };

  const refresh = async () => {
    clearTimeout(timer);
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (!paused) {
          swap(new DOMParser().parseFromString(text, "text/html"));
          note.className = "";
          say(note, `refreshed every ${every / 1000} s`);
        }
      } catch {
        note.className = "lost";
        say(note, "NOT refreshed since: pyrunner serve does not answer");
        say(live, "The page cannot be refreshed: pyrunner serve does not answer.");
      }
    }
    clearTimeout(timer);
    if (!paused) timer = setTimeout(refresh, every);
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (paused) {
      clearTimeout(timer);
      note.className = "";
      say(note, "paused");
    } else {
      refresh();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) refresh();
  });
  say(note, `refreshed every ${every / 1000} s`);
  timer = setTimeout(refresh, every);
})();
