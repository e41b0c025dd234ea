// The page's texts in the chosen language.

import de from './text-de.js';
import en from './text-en.js';
import es from './text-es.js';
import zh from './text-zh.js';

export const tables = { en, de, es, zh };
// Attributes of elements that show a text of the table.
const ATTRIBUTES = { label: 'aria-label', title: 'title', placeholder: 'placeholder' };

let table = en;
let plurals = new Intl.PluralRules('en');

// Uses the table of a language, by default the first of the browser's languages that has one.
export function choose(language) {
  const wanted = language ? [language] : navigator.languages;
  const known = wanted.map((one) => one.split('-')[0].toLowerCase()).find((one) => Object.hasOwn(tables, one));
  use(known ?? 'en', tables[known ?? 'en']);
}

// Uses a table.
export function use(language, texts) {
  table = texts;
  plurals = new Intl.PluralRules(language);
  document.documentElement.lang = language === 'zh' ? 'zh-Hans' : language;
  apply(document);
}

// Returns a text. `{name}` is replaced by `values.name`; of a text with several forms, `values.n` selects one.
export function t(key, values = {}) {
  let text = table[key];
  if (typeof text === 'object') text = text[plurals.select(values.n)] ?? text.other;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// Sets the texts of the elements in `root` whose `data-text`, `data-label`, `data-title` and `data-placeholder` name them.
function apply(root) {
  for (const one of root.querySelectorAll('[data-text]')) one.textContent = t(one.dataset.text);
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    for (const one of root.querySelectorAll(`[data-${name}]`)) one.setAttribute(attribute, t(one.dataset[name]));
  }
}
