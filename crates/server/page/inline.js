// What is in a line of Markdown: emphasis, code, links, addresses and formulas.

import { element, fill } from './elements.js';
import { formula } from './formulas.js';

// Quotes, lists and emphasis within each other, at most: deeper ones are text.
export const DEEPEST = 8;
// Where something other than text may begin.
const SPECIAL = /[\\`*_~[$]|https?:\/\//g;
const ESCAPED = /[\\`*_{}[\]()#+\-.!|~>$]/;
const TARGET = /\(([^()\s]+)\)/y;
const ADDRESS = /https?:\/\/[^\s<>()]*/y;
// What no address ends with.
const POINTS = '.,;:!?\'"';
// What is emphasized: its sign, its element, and whether the sign has to be outside of words.
const MARKS = [['**', 'strong', false], ['__', 'strong', true], ['*', 'em', false], ['_', 'em', true], ['~~', 'del', false]];

// Returns the parts of a line: texts and elements.
export function inline(text, depth = 0) {
  if (depth >= DEEPEST) return [text];
  const made = [];
  const line = new Line(text, depth);
  const special = new RegExp(SPECIAL);
  let done = 0;
  for (let found = special.exec(text); found; found = special.exec(text)) {
    const { index } = found;
    const read = line.read(index);
    // A run of backticks without a closing run is text.
    special.lastIndex = read?.end ?? (text[index] === '`' ? runEnd(text, index) : index + 1);
    if (read) {
      if (index > done) made.push(text.slice(done, index));
      made.push(read.content);
      done = read.end;
    }
  }
  if (done < text.length) made.push(text.slice(done));
  return made;
}

// Where a run of one letter ends.
function runEnd(text, at) {
  const letter = text[at];
  while (text[at] === letter) at += 1;
  return at;
}

// Reads a line from its beginning to its end, and remembers what it found ahead.
class Line {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.ahead = new Map();
  }

  // Returns the element or text that begins at `at`, and where it ends, or undefined if the character is plain text.
  read(at) {
    switch (this.text[at]) {
      case '\\': return this.bracketed(at) ?? (ESCAPED.test(this.text[at + 1] ?? '') ? { content: this.text[at + 1], end: at + 2 } : undefined);
      case '$': return this.dollars(at);
      case '`': return this.verbatim(at);
      case '[': return this.link(at);
      case 'h': return this.address(at);
      default: return this.emphasis(at);
    }
  }

  // Returns the first position from `from` on that `find` returns, or -1. Calls for the same `what` must not go backwards.
  first(what, from, find) {
    const known = this.ahead.get(what);
    if (known === -1 || known >= from) return known;
    const place = find(from);
    this.ahead.set(what, place);
    return place;
  }

  verbatim(at) {
    const start = runEnd(this.text, at);
    const runs = this.runs.get(start - at) ?? [];
    while (runs.at(-1) < start) runs.pop();
    if (!runs.length) return undefined;
    return { content: element('code', this.text.slice(start, runs.at(-1))), end: runs.at(-1) + start - at };
  }

  // A formula in `\(…\)` or `\[…\]`.
  bracketed(at) {
    const close = { '(': '\\)', '[': '\\]' }[this.text[at + 1]];
    return close && this.formula(at, this.text.slice(at, at + 2), close, (from) => this.text.indexOf(close, from));
  }

  // A formula in `$…$` or `$$…$$`. A single sign is also one of money: it opens before a letter that is no space and does not
  // follow a word, and closes after such a letter, and before no word.
  dollars(at) {
    const { text } = this;
    if (text[at + 1] === '$') return this.formula(at, '$$', '$$', (from) => text.indexOf('$$', from));
    if (!/\S/.test(text[at + 1] ?? ' ') || /\w/.test(text[at - 1] ?? ' ')) return undefined;
    return this.formula(at, '$', '$', (from) => {
      let place = text.indexOf('$', from);
      while (place >= 0 && (/[\s\\]/.test(text[place - 1]) || /[\w$]/.test(text[place + 1] ?? ' '))) place = text.indexOf('$', place + 1);
      return place;
    });
  }

  formula(at, open, close, find) {
    const start = at + open.length;
    const end = this.first(`formula ${close}`, start + 1, find);
    if (end < 0) return undefined;
    const whole = end + close.length;
    return { content: formula(this.text.slice(start, end), open === '$$' || open === '\\[', this.text.slice(at, whole)), end: whole };
  }

  emphasis(at) {
    const { text } = this;
    for (const [mark, name, isOutside] of MARKS) {
      const start = at + mark.length;
      const opens = text.startsWith(mark, at) && /\S/.test(text[start] ?? ' ') && (mark.length > 1 || text[start] !== mark);
      if (!opens || (isOutside && /\w/.test(text[at - 1] ?? ' '))) continue;
      const close = this.first(mark, start + 1, (from) => {
        let place = text.indexOf(mark, from);
        while (place >= 0 && isOutside && /\w/.test(text[place + mark.length] ?? ' ')) place = text.indexOf(mark, place + 1);
        return place;
      });
      if (close >= 0) {
        const content = fill(element(name), inline(text.slice(start, close), this.depth + 1));
        return { content, end: close + mark.length };
      }
    }
    return undefined;
  }

  link(at) {
    const { text } = this;
    const middle = this.first(']', at + 1, (from) => text.indexOf(']', from));
    if (middle <= at + 1) return undefined;
    // Many opening brackets may share this closing bracket.
    if (this.middle !== middle) {
      TARGET.lastIndex = middle + 1;
      [this.middle, this.target] = [middle, TARGET.exec(text)?.[1]];
    }
    if (this.target === undefined) return undefined;
    const end = middle + this.target.length + 3;
    return { content: link(this.target, inline(text.slice(at + 1, middle), this.depth + 1), text.slice(at, end)), end };
  }

  address(at) {
    ADDRESS.lastIndex = at;
    const [whole] = ADDRESS.exec(this.text);
    let { length } = whole;
    while (POINTS.includes(whole[length - 1])) length -= 1;
    const address = whole.slice(0, length);
    // A scheme alone, or followed only by punctuation, is not an address.
    return /:\/\/./.test(address) ? { content: link(address, [address], address), end: at + length } : undefined;
  }

  // Returns the positions of runs of backticks by their length, in reverse order.
  get runs() {
    if (!this.backticks) {
      this.backticks = new Map();
      for (const { 0: run, index } of [...this.text.matchAll(/`+/g)].reverse()) {
        if (!this.backticks.has(run.length)) this.backticks.set(run.length, []);
        this.backticks.get(run.length).push(index);
      }
    }
    return this.backticks;
  }
}

// Returns a link to a web page or a mail address. Other kinds of links stay text.
function link(target, content, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return text;
  const made = element('a', ...content);
  made.href = target;
  made.target = '_blank';
  made.rel = 'noopener noreferrer nofollow';
  return made;
}
