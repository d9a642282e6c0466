// What a test asserts about the page, as the browser laid it out; written into the page as JSON.
const box = (element) => element.getBoundingClientRect();
const plots = [...document.querySelectorAll("svg.plot")].map((svg) => {
  const frame = box(svg);
  const texts = [...svg.querySelectorAll("text")].map((element) => ({
    text: element.textContent.trim(),
    color: getComputedStyle(element).fill,
    box: box(element),
  }));
  const outside = texts.filter(({ box }) =>
    box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  const overlapping = [];
  // Boxes have room above and below the letters.
  texts.forEach((one, index) => texts.slice(index + 1).forEach((other) => {
    const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (wide > 1 && high > 4) overlapping.push([one.text, other.text]);
  }));
  return {
    title: svg.querySelector("title").textContent,
    description: svg.querySelector("desc").textContent,
    width: frame.width,
    height: frame.height,
    texts: texts.length,
    outside: outside.map(({ text }) => text),
    overlapping,
    colors: [...new Set(texts.map(({ color }) => color))],
  };
});
const body = getComputedStyle(document.body);
const measured = document.createElement("pre");
measured.id = "measured";
measured.textContent = JSON.stringify({
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  background: body.backgroundColor,
  ink: body.color,
  clientWidth: document.documentElement.clientWidth,
  scrollWidth: document.documentElement.scrollWidth,
  requests: performance.getEntriesByType("resource").map(({ name }) => name),
  plots,
});
document.body.append(measured);
