// The dialog of settings: those of the conversation that is open, or of new ones, and those of this browser.

import * as api from './api.js';
import { element, fill } from './elements.js';
import { REASONING, saveSettings, settings } from './store.js';
import { choose, t, tables } from './text.js';
import * as tools from './tools.js';

const get = (id) => document.getElementById(id);
const [dialog, model, system, reasoning, hasTools, toolList] = ['settings', 'model', 'system', 'reasoning', 'has-tools', 'tool-list'].map(get);
const [key, language, theme] = ['key', 'language', 'theme-choice'].map(get);
const numbers = [...document.querySelectorAll('[data-number]')];
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
let page;

// Shows the chosen theme, lists the models, and lets the buttons act. `page` has `conversation`, `kept`, `say` and `show`.
export function start(given) {
  page = given;
  get('settings-open').addEventListener('click', open);
  dialog.addEventListener('close', keep);
  model.addEventListener('change', () => {
    settings.model = model.value;
    saveSettings();
  });
  get('theme').addEventListener('click', () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  theme.addEventListener('change', () => setTheme(theme.value || undefined));
  language.addEventListener('change', () => {
    settings.language = language.value || undefined;
    choose(settings.language);
    write();
    page.show();
  });
  prefersDark.addEventListener('change', showTheme);
  showTheme();
  listModels();
}

// Opens the dialog at the field of the key.
export function askForKey() {
  if (!dialog.open) open();
  key.focus();
}

function open() {
  read();
  dialog.showModal();
}

function read() {
  write();
  const { system: text, sampling, reasoning: effort, hasTools: calls } = { ...settings, ...page.conversation() };
  system.value = text;
  for (const input of numbers) input.value = (sampling ?? {})[input.dataset.number] ?? '';
  reasoning.value = effort ?? '';
  hasTools.checked = calls ?? false;
  key.value = settings.key ?? '';
}

// Writes the texts that depend on the language.
function write() {
  get('scope').textContent = t(page.conversation() ? 'scopeThis' : 'scopeNew');
  const choices = [['', t('asModel')], ...Object.keys(REASONING).map((one) => [one, t(`reasoning_${one}`)])];
  options(reasoning, choices);
  options(theme, [['', t('asSystem')], ['light', t('themeLight')], ['dark', t('themeDark')]], settings.theme);
  // A language is named in itself.
  options(language, [['', t('asBrowser')], ...Object.entries(tables).map(([one, table]) => [one, table.languageName])], settings.language);
}

function options(select, choices, chosen = select.value) {
  select.replaceChildren(...choices.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

function keep() {
  const target = page.conversation() ?? settings;
  target.system = system.value;
  target.sampling = {};
  for (const input of numbers) {
    if (input.value !== '' && input.validity.valid) target.sampling[input.dataset.number] = Number(input.value);
  }
  target.reasoning = reasoning.value || undefined;
  target.hasTools = hasTools.checked || undefined;
  if (!hasTools.checked) tools.forget();
  settings.key = key.value.trim() || undefined;
  saveSettings();
  page.kept();
  listModels();
}

// Lists the models and the tools of the server.
export async function listModels() {
  try {
    const names = await api.models();
    options(model, names.map((name) => [name, name]), settings.model);
    await listTools();
    page.say('');
  } catch (error) {
    page.say(error.message);
    if (error.status === 401) askForKey();
  }
}

async function listTools() {
  const offered = await tools.list();
  get('tools').hidden = !offered.length;
  toolList.replaceChildren(...offered.map(({ server, name, description }) => fill(element('li'), [element('code', `${server}: ${name}`), ` ${description ?? ''}`])));
}

function setTheme(chosen) {
  settings.theme = chosen;
  saveSettings();
  showTheme();
}

function showTheme() {
  const chosen = ['light', 'dark'].find((one) => one === settings.theme);
  document.documentElement.dataset.theme = chosen ?? (prefersDark.matches ? 'dark' : 'light');
  theme.value = chosen ?? '';
}
