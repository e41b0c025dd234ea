// Formulas in LaTeX as MathML, by the library Temml, which is loaded with the first formula. Until then, and if it is wrong,
// a formula is shown as it is written.

// Letters of a formula at most, which bounds how deep it is; and of all formulas of a text, where each counts for some more.
const LONGEST = 2000;
const MOST = 50_000;
const EACH = 25;
// Formulas that are remembered.
const KEPT = 2000;
const MATHML = 'http://www.w3.org/1998/Math/MathML';
// Sizes are at most so many em or points, and macros are replaced at most so many times.
const OPTIONS = { throwOnError: true, trust: false, maxSize: [20, 240], maxExpand: 200 };

// Elements by what they show, and places that wait for the library.
const made = new Map();
let waiting = [];
// Null if it can't be loaded.
let library;
let letters = 0;

// Begins a text: it may have formulas again.
export function begin() {
  letters = 0;
}

// Returns an element with a formula. `written` is the formula with its signs.
export function formula(source, isDisplay, written) {
  letters += source.length + EACH;
  const place = document.createElement(isDisplay ? 'div' : 'span');
  place.className = 'formula';
  place.append(written);
  if (source.length > LONGEST || letters > MOST) return place;
  if (library) fill(place, source, isDisplay);
  else if (library === undefined) wait(place, source, isDisplay);
  return place;
}

function wait(...formula) {
  if (waiting.push(formula) > 1) return;
  const style = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: 'vendor/Temml-Local.css' });
  const script = Object.assign(document.createElement('script'), { src: 'vendor/temml.min.js' });
  script.addEventListener('load', () => {
    library = globalThis.temml;
    for (const one of waiting) fill(...one);
    waiting = [];
  });
  script.addEventListener('error', () => { [library, waiting] = [null, []]; });
  document.head.append(style, script);
}

function fill(place, source, isDisplay) {
  const key = `${isDisplay} ${source}`;
  if (!made.has(key)) {
    if (made.size >= KEPT) made.clear();
    made.set(key, convert(source, isDisplay));
  }
  const found = made.get(key);
  if (found) place.replaceChildren(found.cloneNode(true));
}

// Returns the element of a formula, or null if it is wrong.
function convert(source, isDisplay) {
  const place = document.createElement('span');
  try {
    library.render(source, place, { ...OPTIONS, displayMode: isDisplay });
  } catch {
    // A formula that is still being written, or that nests too deep.
    return null;
  }
  const math = place.firstElementChild;
  return math && [math, ...math.querySelectorAll('*')].every(isHarmless) ? math : null;
}

// Removes what names or opens something else, and returns whether an element is one of a formula.
function isHarmless(one) {
  for (const { name } of [...one.attributes]) {
    if (['id', 'href', 'src', 'tabindex'].includes(name) || name.startsWith('on')) one.removeAttribute(name);
  }
  return one.namespaceURI === MATHML;
}
