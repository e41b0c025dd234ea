// The page's texts in simplified Chinese.

export default {
  languageName: '简体中文',
  // The frame.
  skip: '跳到消息输入框', conversations: '对话', newChat: '新对话', search: '搜索对话',
  found: { other: '找到 {n} 个对话。' },
  export: '导出', exportAll: '将所有对话保存为文件', import: '导入', importTitle: '从文件添加对话',
  switchTheme: '切换浅色和深色', keyboardShortcuts: '键盘快捷键', showConversations: '显示对话',
  model: '模型', settings: '设置', conversation: '对话内容', done: '完成',
  // The message box.
  message: '消息', writeMessage: '输入消息', send: '发送', stop: '停止',
  pictures: '消息的图片', addPicture: '添加图片', addPictureTitle: '添加图片，也可以粘贴或拖放',
  pictureNumber: '图片 {n}', removePicture: '移除图片 {n}',
  files: '消息的文本文件', file: '文件', addFile: '添加文本文件', addFileTitle: '添加文本文件，也可以粘贴或拖放',
  removeFile: '移除 {name}', letters: { other: '{n} 个字符' },
  fileTooLarge: '{name} 太大：最多 {most} KiB。', filesTooMany: '{name} 放不下：最多 {n} 个文件，共 {most} KiB。',
  fileNoText: '{name} 不是 UTF-8 文本。', fileUnreadable: '无法读取 {name}。',
  // Messages.
  welcome: '这台机器能为您做什么？', welcomeText: '回答在本机计算，对话保存在此浏览器中。',
  you: '您', answer: '回答', copy: '复制', copied: '已复制', copyCode: '复制代码', edit: '编辑', editMessage: '编辑消息', cancel: '取消',
  regenerate: '重新生成', continue: '继续', timeline: '时间线', taskDone: '已完成', taskOpen: '未完成',
  reasoning: '正在思考…', reasoned: '思考过程', reasonedFor: '思考了 {seconds} 秒',
  cutOff: '回答被截断：没有剩余的词元。', stopped: '已停止。',
  tokens: { other: '{n} 个词元' }, rate: '{rate} 词元/秒', promptOf: '提示 {n} 个', cached: '{n} 个已缓存',
  // Calls of tools.
  call: '调用', arguments: '参数', result: '结果', callAsks: '等待您的答复', callRuns: '正在运行', callDeclined: '已拒绝', callFailed: '失败',
  callWithout: '未执行', callNoJson: '参数不是 JSON', askCall: '允许服务器 {server} 执行吗？', allow: '允许', allowAlways: '始终允许此工具', decline: '拒绝',
  // Conversations.
  title: '标题', exportOne: '将“{title}”保存为文件', rename: '重命名“{title}”', delete: '删除“{title}”', deleteAsk: '删除“{title}”？',
  imported: { other: '已添加 {n} 个对话。' },
  importNoJson: '该文件不是 JSON：需要由“导出”生成的文件。', importNoConversations: '该文件没有 Triad 的对话：需要由“导出”生成的文件。',
  storageFull: '此浏览器空间已满：请删除或导出对话。',
  // What happens.
  statusComputing: '正在计算…', statusComplete: '回答已完成。', statusCutOff: '回答被截断。', statusStopped: '回答已停止。',
  statusCalls: '模型请求使用工具：请看对话末尾。', loading: '正在加载…',
  unreachable: '无法连接服务器。它还在运行吗？', refused: '服务器拒绝了请求：{status}。',
  // Settings.
  scopeThis: '此对话', scopeNew: '新对话', systemPrompt: '系统提示', samplingNote: '留空则采用模型作者的建议。',
  temperature: '温度', topP: 'Top p', topK: 'Top k', minP: 'Min p', maxTokens: '最多词元数', seed: '随机种子',
  reasoningChoice: '思考', reasoningBudget: '思考最多词元数', asModel: '由模型决定',
  reasoning_on: '开启', reasoning_off: '关闭', reasoning_low: '少', reasoning_medium: '中', reasoning_high: '多',
  useTools: '服务器的工具', toolsNote: '每次调用都会询问。',
  thisBrowser: '此浏览器', language: '语言', asBrowser: '跟随浏览器', theme: '颜色', asSystem: '跟随系统', themeLight: '浅色', themeDark: '深色',
  apiKey: 'API 密钥', apiKeyNote: '服务器需要时填写；保存在此浏览器中',
  // Models.
  models: '服务器的模型', inMemory: '已在内存中', notInMemory: '不在内存中', load: '加载', unload: '卸载',
  loadModel: '加载 {name}', unloadModel: '卸载 {name}', modelsNote: '模型在服务器所在的机器上获取：先 triad pull，再 triad serve -m。使用 --allow-pull 时，本页面也可以获取模型。',
  pullExample: 'hf:owner/name', pullModel: '将模型下载到服务器', pullNote: '使用它在 Hugging Face 上的名称：hf:owner/name 或 hf:owner/name:file', download: '下载',
  pullProgress: '下载进度', pullBegins: '正在下载 {name}。', pullAsks: '正在查询文件……', pullWaits: '另一个进程正在下载此模型。',
  pullFile: '{file}：{done} / {all}', pullDone: '{name} 已就绪。', pullCancelled: '已取消下载 {name}。下次下载会从中断处继续。',
  pullBroken: '连接在模型下载完成之前中断。下次下载会从中断处继续。',
  deleteModel: '删除', deleteModelAsk: '从服务器所在的机器上删除 {name}（{size}）？',
  // Keys.
  keyboard: '键盘', keySend: '发送消息', keyLine: '换行', keyStop: '停止回答，或退出编辑', keyRegenerate: '重新生成最后的回答',
  keyEdit: '编辑最后的消息', keyHelp: '此列表（不在文本中时）', keyTimeline: '缩放、移动和重置时间线',
  // The timeline.
  timelineTitle: '提示是如何计算的', zoomIn: '放大', zoomOut: '缩小', all: '全部',
  timelineGone: '服务器没有此回答的时间线：只保留最近的。',
  timelineWork: '{tokens}，{chunks}，{time}', chunks: { other: '{n} 块' }, timelineBusy: '{name} 忙碌 {percent} %',
  timelineKeys: '滚动或 + 和 − 缩放，拖动或方向键移动。', timelineTask: '{name}，第 {n} 块：{time}，始于 {start}',
};
