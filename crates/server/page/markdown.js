// Renders Markdown as elements. The model's output only becomes text nodes: no part of it is parsed as HTML.
//
// The time is linear in the length of any text: no expression here can match the same characters in two ways, and each
// search further on in a line is done once.

import { copying, element, fill } from './elements.js';
import { begin, formula } from './formulas.js';
import { DEEPEST, inline } from './inline.js';
import { t } from './text.js';

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(\S.*)?$/s;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(\S.*)?$/s;
const QUOTE = /^\s{0,3}>\s?(.*)$/s;
const TASK = /^\[([ xX])\]\s+(?=\S)/;
// The signs around a formula that stands alone.
const DISPLAYS = [['$$', '$$'], ['\\[', '\\]']];

// Puts `text` into `place`, in place of what is there.
export function render(text, place) {
  place.replaceChildren();
  begin();
  fill(place, blocks(text.split('\n'), 0));
}

function blocks(lines, depth) {
  const made = [];
  const formulas = new Formulas(lines);
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const shown = formulas.at(at);
    const [fence, heading, quote, item] = [FENCE, HEADING, QUOTE, ITEM].map((form) => form.exec(line));
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = closing(lines, at + 1, fence[1]);
      made.push(code(lines.slice(at + 1, end).join('\n'), fence[2]));
      at = end + 1;
    } else if (heading) {
      made.push(fill(element(`h${heading[1].length}`), inline(title(heading[2] ?? ''))));
      at += 1;
    } else if (shown) {
      made.push(formula(shown.source, true, lines.slice(at, shown.end).join('\n')));
      at = shown.end;
    } else if (RULE.test(line)) {
      made.push(element('hr'));
      at += 1;
    } else if (quote && depth < DEEPEST) {
      const end = run(lines, at, (one) => QUOTE.test(one));
      const inside = lines.slice(at, end).map((one) => QUOTE.exec(one)[1]);
      made.push(fill(element('blockquote'), blocks(inside, depth + 1)));
      at = end;
    } else if (item && depth < DEEPEST) {
      const end = listEnd(lines, at);
      made.push(list(lines.slice(at, end), depth));
      at = end;
    } else if (line.includes('|') && isDivider(lines[at + 1] ?? '')) {
      const end = run(lines, at + 2, (one) => one.includes('|'));
      made.push(table(line, lines[at + 1], lines.slice(at + 2, end)));
      at = end;
    } else {
      const goesOn = (one, index) => one.trim() && ![FENCE, HEADING, QUOTE, ITEM, RULE].some((form) => form.test(one)) && !formulas.at(index);
      const end = run(lines, at + 1, goesOn);
      made.push(paragraph(lines.slice(at, end)));
      at = end;
    }
  }
  return made;
}

// The text of a heading, without the signs that may close it after a space.
function title(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === '#') end -= 1;
  return /\S/.test(whole[end - 1] ?? ' ') ? whole : whole.slice(0, end).trimEnd();
}

// Whether a line divides the head of a table from its rows.
function isDivider(line) {
  return cells(line).every((cell) => /^:?-+:?$/.test(cell));
}

// The first line from `at` on that `belongs` does not hold for.
function run(lines, at, belongs) {
  while (at < lines.length && belongs(lines[at], at)) at += 1;
  return at;
}

// The formulas that stand alone among lines. Is asked from the first line to the last, and remembers what it found ahead.
class Formulas {
  constructor(lines) {
    this.lines = lines;
    this.ahead = new Map();
  }

  // Returns the formula that begins at a line, and the line after it, if there is one: without a blank line in it.
  at(index) {
    const line = this.lines[index].trim();
    for (const [open, close] of DISPLAYS) {
      if (!line.startsWith(open)) continue;
      const inLine = line.indexOf(close, open.length);
      const isWhole = inLine >= 0 && inLine + close.length === line.length;
      if (inLine >= 0 && !isWhole) continue;
      const end = isWhole ? index : this.first(close, index + 1, (one) => one.trimEnd().endsWith(close));
      if (end >= this.first('', index, (one) => !one.trim())) continue;
      const source = this.lines.slice(index, end + 1).join('\n').trim();
      return { source: source.slice(open.length, -close.length), end: end + 1 };
    }
    return undefined;
  }

  first(what, from, isIt) {
    if (!(this.ahead.get(what) >= from)) this.ahead.set(what, run(this.lines, from, (one) => !isIt(one)));
    return this.ahead.get(what);
  }
}

// The line that closes a fence; the end of a text that is still being written.
function closing(lines, at, fence) {
  return run(lines, at, (one) => !(one.trim().startsWith(fence) && !one.trim().slice(fence.length).replaceAll(fence[0], '')));
}

function listEnd(lines, at) {
  const [, { length: indent }, first] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first);
  const goesOn = (one) => {
    const item = ITEM.exec(one);
    // An item of the other kind starts another list.
    return item && item[1].length <= indent ? /\d/.test(item[2]) === isOrdered : one.search(/\S/) > indent;
  };
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const next = lines[end + 1] ?? '';
    if (line.trim() ? !goesOn(line) : !(next.trim() && goesOn(next))) break;
    end += 1;
  }
  return end;
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(first[2]);
  const made = element(isOrdered ? 'ol' : 'ul');
  if (isOrdered && Number.parseInt(first[2], 10) !== 1) made.start = Number.parseInt(first[2], 10);
  let at = 0;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    const end = run(lines, at + 1, (one) => {
      const other = ITEM.exec(one);
      return !other || other[1].length > first[1].length;
    });
    const width = first[1].length + 2;
    const rest = lines.slice(at + 1, end).map((one) => one.slice(Math.min(width, Math.max(one.search(/\S/), 0))));
    const task = TASK.exec(item[3] ?? '');
    const inside = blocks([(item[3] ?? '').slice(task?.[0].length ?? 0)].concat(rest), depth + 1);
    // The text of a tight item is not a paragraph.
    const tight = inside[0]?.tagName === 'P' ? [...inside.shift().childNodes] : [];
    made.append(fill(fill(element('li', ...(task ? [box(task[1] !== ' ')] : [])), tight), inside));
    at = end;
  }
  return made;
}

// The box of a task.
function box(isDone) {
  const made = element('input');
  Object.assign(made, { type: 'checkbox', checked: isDone, disabled: true });
  made.setAttribute('aria-label', t(isDone ? 'taskDone' : 'taskOpen'));
  return made;
}

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function table(header, divider, lines) {
  const sides = cells(divider).map((cell) => ['', 'left', 'right', 'center'][cell.startsWith(':') + 2 * cell.endsWith(':')]);
  const cell = (name, text, column) => {
    const made = fill(element(name), inline(text));
    if (sides[column]) made.style.textAlign = sides[column];
    return made;
  };
  const row = (name, line) => fill(element('tr'), cells(line).map((text, column) => cell(name, text, column)));
  const body = fill(element('tbody'), lines.map((line) => row('td', line)));
  return element('table', element('thead', row('th', header)), body);
}

function paragraph(lines) {
  const made = element('p');
  lines.forEach((line, index) => {
    if (index) made.append(element('br'));
    fill(made, inline(line.trim().replace(/\\$/, '')));
  });
  return made;
}

function code(text, language) {
  const inside = element('code', text);
  if (language) inside.dataset.language = language;
  const copy = copying(text);
  copy.setAttribute('aria-label', t('copyCode'));
  const made = element('div', element('pre', inside), copy);
  made.className = 'code';
  return made;
}
