// The dialog of models: what they are, and which are in memory.

import * as api from './api.js';
import { button, classed, element } from './elements.js';
import { t } from './text.js';

const get = (id) => document.getElementById(id);
// A model leaves the memory when its requests have ended: so often is asked, and so many milliseconds apart.
const [TRIES, APART] = [20, 150];
const [dialog, list, status] = ['models', 'model-list', 'model-status'].map(get);

// Lets the button open the dialog.
export function start() {
  get('models-open').addEventListener('click', () => {
    list.replaceChildren();
    dialog.showModal();
    show();
  });
}

// Lists the models, if need be when `name` has the state `isLoaded`.
async function show(name, isLoaded) {
  status.textContent = t('loading');
  try {
    if (name) await api.setLoaded(name, isLoaded);
    let models = await api.descriptions();
    for (let attempt = 0; attempt < TRIES && models.some((one) => one.name === name && one.isLoaded !== isLoaded); attempt += 1) {
      await new Promise((resolve) => { setTimeout(resolve, APART); });
      models = await api.descriptions();
    }
    list.replaceChildren(...models.map(item));
    status.textContent = '';
  } catch (error) {
    status.textContent = error.message;
  }
}

function item({ name, size, details, isLoaded }) {
  const facts = [details.family, details.parameter_size, details.quantization_level, bytes(size)].filter((one) => one && one !== 'unknown');
  const change = button(t(isLoaded ? 'unload' : 'load'), () => {
    change.disabled = true;
    show(name, !isLoaded);
  });
  change.setAttribute('aria-label', t(isLoaded ? 'unloadModel' : 'loadModel', { name }));
  const state = classed('span', 'quiet', t(isLoaded ? 'inMemory' : 'notInMemory'));
  return element('li', element('div', element('strong', name), element('br'), classed('span', 'quiet facts', `${facts.join(' · ')} · `), state), change);
}

function bytes(size) {
  return size >= 1e9 ? `${(size / 1e9).toFixed(1)} GB` : `${Math.round(size / 1e6)} MB`;
}
