// The dialog of models: what they are, which are in memory, and, where the server allows it, their download and deletion.

import * as api from './api.js';
import { button, classed, element } from './elements.js';
import { t } from './text.js';

const get = (id) => document.getElementById(id);
// A model leaves the memory when its requests have ended: so often is asked, and so many milliseconds apart.
const [TRIES, APART] = [20, 150];
const [dialog, list, status, note] = ['models', 'model-list', 'model-status', 'models-note'].map(get);
const [form, name, running, bar, text, cancel] = ['pull', 'pull-name', 'pull-running', 'pull-bar', 'pull-text', 'pull-cancel'].map(get);

// Called when models have come or gone.
let changed;
// Aborts the download that is running. It goes on while the dialog is closed.
let abort = null;

// Lets the buttons act.
export function start(page) {
  changed = page.changed;
  get('models-open').addEventListener('click', () => {
    list.replaceChildren();
    dialog.showModal();
    show();
  });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (name.value.trim()) pull(name.value.trim());
  });
  cancel.addEventListener('click', () => abort?.abort());
}

// Shows the models after `act`, which may name one and the state `isLoaded` to wait for.
async function show(act = async () => ({})) {
  status.textContent = t('loading');
  try {
    const { model, isLoaded } = await act();
    let [models, allowsPull] = await Promise.all([api.descriptions(), api.allowsPull()]);
    for (let attempt = 0; attempt < TRIES && models.some((one) => one.name === model && one.isLoaded !== isLoaded); attempt += 1) {
      await new Promise((resolve) => { setTimeout(resolve, APART); });
      models = await api.descriptions();
    }
    const isHere = dialog.contains(document.activeElement);
    list.replaceChildren(...models.map(item));
    // The button that was pressed is another one now.
    if (isHere && model) list.querySelector(`[data-model="${CSS.escape(model)}"]`)?.focus();
    note.hidden = allowsPull;
    form.hidden = !allowsPull || abort !== null;
    // A download that has ended meanwhile says so there.
    if (status.textContent === t('loading')) status.textContent = '';
  } catch (error) {
    status.textContent = error.message;
  }
}

function item({ name: model, size, details, isLoaded, deletable }) {
  const facts = [details.family, details.parameter_size, details.quantization_level, details.format, bytes(size)].filter((one) => one && one !== 'unknown');
  const change = button(t(isLoaded ? 'unload' : 'load'), () => {
    change.disabled = true;
    show(async () => {
      await api.setLoaded(model, !isLoaded);
      return { model, isLoaded: !isLoaded };
    });
  });
  change.dataset.model = model;
  change.setAttribute('aria-label', t(isLoaded ? 'unloadModel' : 'loadModel', { name: model }));
  const state = classed('span', 'quiet', t(isLoaded ? 'inMemory' : 'notInMemory'));
  const buttons = classed('div', 'bar', change);
  if (deletable) buttons.append(removing(model, size));
  return element('li', element('div', element('strong', model), element('br'), classed('span', 'quiet facts', `${facts.join(' · ')} · `), state), buttons);
}

// Returns the button that deletes a model.
function removing(model, size) {
  const made = button(t('deleteModel'), () => {
    if (!confirm(t('deleteModelAsk', { name: model, size: bytes(size) }))) return;
    made.disabled = true;
    name.focus();
    show(async () => {
      await api.remove(model);
      changed();
      return {};
    });
  });
  made.setAttribute('aria-label', t('delete', { title: model }));
  return made;
}

// Lets the server fetch a model, and shows the progress.
async function pull(model) {
  abort = new AbortController();
  form.hidden = true;
  running.hidden = false;
  cancel.focus();
  status.textContent = t('pullBegins', { name: model });
  bar.removeAttribute('value');
  text.textContent = t('pullAsks');
  let end;
  try {
    for await (const progress of api.pull(model, abort.signal)) advance(progress);
    name.value = '';
    end = t('pullDone', { name: model });
  } catch (error) {
    end = abort.signal.aborted ? t('pullCancelled', { name: model }) : error.message;
  }
  abort = null;
  running.hidden = true;
  await show();
  if (dialog.open) name.focus();
  status.textContent = end;
  changed();
}

function advance({ status: step, completed, total }) {
  if (completed === undefined) {
    bar.removeAttribute('value');
    text.textContent = t(step.startsWith('waiting') ? 'pullWaits' : 'pullAsks');
    return;
  }
  const file = step.replace(/^pulling /, '');
  if (total) bar.value = completed / total;
  else bar.removeAttribute('value');
  text.textContent = total ? t('pullFile', { file, done: bytes(completed), all: bytes(total) }) : `${file}: ${bytes(completed)}`;
}

function bytes(size) {
  if (size < 1e6) return `${Math.round(size / 1e3)} kB`;
  return size >= 1e9 ? `${(size / 1e9).toFixed(1)} GB` : `${Math.round(size / 1e6)} MB`;
}
