// The page's texts in Spanish.

export default {
  languageName: 'Español',
  // The frame.
  skip: 'Saltar al cuadro de mensaje', conversations: 'Conversaciones', newChat: 'Nuevo chat', search: 'Buscar conversaciones',
  found: { one: '{n} conversación encontrada.', other: '{n} conversaciones encontradas.' },
  export: 'Exportar', exportAll: 'Guardar todas las conversaciones en un archivo', import: 'Importar', importTitle: 'Añadir conversaciones de un archivo',
  switchTheme: 'Cambiar entre claro y oscuro', keyboardShortcuts: 'Atajos de teclado', showConversations: 'Mostrar conversaciones',
  model: 'Modelo', settings: 'Ajustes', conversation: 'Conversación', done: 'Listo',
  // The message box.
  message: 'Mensaje', writeMessage: 'Escribe un mensaje', send: 'Enviar', stop: 'Detener',
  pictures: 'Imágenes del mensaje', addPicture: 'Añadir una imagen', addPictureTitle: 'Añadir una imagen; también se puede pegar o arrastrar',
  pictureNumber: 'Imagen {n}', removePicture: 'Quitar la imagen {n}',
  files: 'Archivos de texto del mensaje', file: 'archivo', addFile: 'Añadir un archivo de texto', addFileTitle: 'Añadir un archivo de texto; también se puede pegar o arrastrar',
  removeFile: 'Quitar {name}', letters: { one: '{n} carácter', other: '{n} caracteres' },
  fileTooLarge: '{name} es demasiado grande: como máximo {most} KiB.', filesTooMany: '{name} no cabe: como máximo {n} archivos de {most} KiB en total.',
  fileNoText: '{name} no es texto en UTF-8.', fileUnreadable: 'No se puede leer {name}.',
  // Messages.
  welcome: '¿Qué puede hacer este equipo por ti?', welcomeText: 'Las respuestas se calculan aquí y las conversaciones se quedan en este navegador.',
  you: 'Tú', answer: 'Respuesta', copy: 'Copiar', copied: 'Copiado', copyCode: 'Copiar el código', edit: 'Editar', editMessage: 'Editar el mensaje', cancel: 'Cancelar',
  regenerate: 'Regenerar', continue: 'Continuar', timeline: 'Cronología', taskDone: 'Hecho', taskOpen: 'Pendiente',
  reasoning: 'Razonando …', reasoned: 'Razonamiento', reasonedFor: 'Razonó durante {seconds} s',
  cutOff: 'Cortada: no quedaban tokens.', stopped: 'Detenida.',
  tokens: { one: '{n} token', other: '{n} tokens' }, rate: '{rate} tokens/s', promptOf: 'entrada de {n}', cached: '{n} en caché',
  // Calls of tools.
  call: 'Llamada a', arguments: 'Argumentos', result: 'Resultado', callAsks: 'espera tu respuesta', callRuns: 'en curso', callDeclined: 'rechazada', callFailed: 'falló',
  callWithout: 'no se hizo', callNoJson: 'los argumentos no son JSON', askCall: '¿Permitir que el servidor {server} lo haga?', allow: 'Permitir', allowAlways: 'Permitir siempre esta herramienta', decline: 'Rechazar',
  // Conversations.
  title: 'Título', exportOne: 'Guardar {title} en un archivo', rename: 'Cambiar el nombre de {title}', delete: 'Eliminar {title}', deleteAsk: '¿Eliminar «{title}»?',
  imported: { one: '{n} conversación añadida.', other: '{n} conversaciones añadidas.' },
  importNoJson: 'El archivo no es JSON: se esperaba uno escrito con Exportar.', importNoConversations: 'El archivo no tiene conversaciones de Triad: se esperaba uno escrito con Exportar.',
  storageFull: 'Este navegador no tiene más espacio: elimina o exporta conversaciones.',
  // What happens.
  statusComputing: 'Calculando …', statusComplete: 'La respuesta está completa.', statusCutOff: 'La respuesta está cortada.', statusStopped: 'La respuesta se detuvo.',
  statusCalls: 'El modelo pide una herramienta: mira el final de la conversación.', loading: 'Cargando …',
  unreachable: 'No se puede contactar con el servidor. ¿Sigue en marcha?', refused: 'El servidor respondió con {status}.',
  // Settings.
  scopeThis: 'Esta conversación', scopeNew: 'Conversaciones nuevas', systemPrompt: 'Instrucción del sistema', samplingNote: 'Los campos vacíos siguen la recomendación de los autores del modelo.',
  temperature: 'Temperatura', topP: 'Top p', topK: 'Top k', minP: 'Min p', maxTokens: 'Máximo de tokens', seed: 'Semilla',
  reasoningChoice: 'Razonamiento', reasoningBudget: 'Máximo de tokens de razonamiento', asModel: 'según el modelo',
  reasoning_on: 'sí', reasoning_off: 'no', reasoning_low: 'poco', reasoning_medium: 'medio', reasoning_high: 'mucho',
  useTools: 'Herramientas del servidor', toolsNote: 'Se pregunta antes de cada llamada.',
  thisBrowser: 'Este navegador', language: 'Idioma', asBrowser: 'como el navegador', theme: 'Colores', asSystem: 'como el sistema', themeLight: 'claro', themeDark: 'oscuro',
  apiKey: 'Clave de API', apiKeyNote: 'si el servidor la pide; se guarda en este navegador',
  // Models.
  models: 'Modelos del servidor', inMemory: 'en memoria', notInMemory: 'no en memoria', load: 'Cargar', unload: 'Descargar de la memoria',
  loadModel: 'Cargar {name}', unloadModel: 'Quitar {name} de la memoria', modelsNote: 'Los modelos se obtienen en el equipo del servidor: triad pull y luego triad serve -m. Con --allow-pull, también esta página los obtiene.',
  pullExample: 'hf:owner/name', pullModel: 'Descargar un modelo al servidor', pullNote: 'por su nombre en Hugging Face: hf:owner/name o hf:owner/name:file', download: 'Descargar',
  pullProgress: 'Progreso de la descarga', pullBegins: 'Se descarga {name}.', pullAsks: 'Preguntando por los archivos …', pullWaits: 'Otro proceso descarga este modelo.',
  pullFile: '{file}: {done} de {all}', pullDone: '{name} está listo.', pullCancelled: 'Se canceló la descarga de {name}. La próxima la continúa.',
  pullBroken: 'La conexión terminó antes de completar el modelo. La próxima descarga lo continúa.',
  deleteModel: 'Eliminar', deleteModelAsk: '¿Eliminar {name} ({size}) del equipo del servidor?',
  // Keys.
  keyboard: 'Teclado', keySend: 'Enviar el mensaje', keyLine: 'Empezar una línea nueva', keyStop: 'Detener la respuesta o dejar de editar', keyRegenerate: 'Regenerar la última respuesta',
  keyEdit: 'Editar el último mensaje', keyHelp: 'Esta lista, fuera de un texto', keyTimeline: 'Ampliar, mover y restablecer una cronología',
  // The timeline.
  timelineTitle: 'Cómo se calculó la entrada', zoomIn: 'Ampliar', zoomOut: 'Reducir', all: 'Todo',
  timelineGone: 'El servidor no tiene cronología de esta respuesta: solo guarda las últimas.',
  timelineWork: '{tokens} en {chunks}, {time}', chunks: { one: '{n} trozo', other: '{n} trozos' }, timelineBusy: '{name} ocupado al {percent} %',
  timelineKeys: 'La rueda o + y − amplían; arrastrar o las flechas mueven.', timelineTask: '{name}, trozo {n}: {time} desde {start}',
};
