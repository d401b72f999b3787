// Lights the values that a kernel reads and writes while the pointer is on it. The page says everything without it.
for (const row of document.querySelectorAll(".rows > a[data-launch]")) {
  const flow = row.closest(".flow");
  const ends = flow.querySelectorAll(`[data-from="${row.dataset.launch}"], [data-to~="${row.dataset.launch}"]`);
  const rows = [...ends].flatMap((end) => (end.dataset.from === row.dataset.launch ? end.dataset.to.split(" ") : [end.dataset.from]));
  const light = (on) => {
    flow.classList.toggle("lit", on && ends.length > 0);
    ends.forEach((end) => end.classList.toggle("on", on));
    rows.forEach((other) => flow.querySelector(`a[data-launch="${other}"]`)?.classList.toggle("on", on));
  };
  row.addEventListener("mouseenter", () => light(true));
  row.addEventListener("mouseleave", () => light(false));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && location.hash.startsWith("#kernel-")) history.replaceState(null, "", "#"), (location.hash = "#kernels");
});
