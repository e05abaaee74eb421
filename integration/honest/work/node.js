'use strict'
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads')
const { execFileSync, fork, spawn } = require('child_process')
const cluster = require('cluster')
const crypto = require('crypto')
const fs = require('fs')
const http = require('http')
const os = require('os')
const path = require('path')
const zlib = require('zlib')

async function main () {
  const sums = await Promise.all([1, 2, 3, 4].map((n) => new Promise((resolve, reject) => {
    const shared = new Int32Array(new SharedArrayBuffer(4))
    const worker = new Worker(__filename, { workerData: { n, shared } })
    worker.on('message', (sum) => resolve(sum + Atomics.load(shared, 0)))
    worker.on('error', reject)
  })))
  console.log('workers', sums.join())

  console.log('child', execFileSync('sh', ['-c', 'echo $((6 * 7))']).toString().trim())
  const piped = spawn('cat')
  piped.stdin.end('through a pipe')
  let text = ''
  for await (const chunk of piped.stdout) text += chunk
  console.log('pipe', text)
  const forked = fork(__filename, ['forked'])
  console.log('fork', await new Promise((resolve) => forked.on('message', resolve)))

  const server = http.createServer((request, answer) => answer.end('path ' + request.url))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address()
  console.log('http', await new Promise((resolve, reject) => http.get({ port, host: '127.0.0.1', path: '/a', agent: false }, async (answer) => {
    let body = ''
    for await (const chunk of answer) body += chunk
    resolve(body)
  }).on('error', reject)))
  server.close()

  cluster.setupPrimary({ args: ['clustered'] })
  const port2 = await new Promise((resolve) => { cluster.fork().on('message', resolve) })
  console.log('cluster', port2 > 0)
  await new Promise((resolve) => cluster.disconnect(resolve))

  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'node-'))
  const seen = new Promise((resolve) => fs.watch(dir, (_, name) => resolve(name)))
  await fs.promises.writeFile(path.join(dir, 'watched'), 'x'.repeat(100000))
  console.log('watch', await seen)
  fs.rmSync(dir, { recursive: true })

  const packed = zlib.gzipSync(Buffer.alloc(1 << 20, 'a'))
  console.log('gzip', zlib.gunzipSync(packed).length)
  console.log('scrypt', await new Promise((resolve, reject) => crypto.scrypt('password', 'salt', 32, (e, key) => e ? reject(e) : resolve(key.length))))
  // Compiled at run time.
  let hot = 0
  for (let i = 0; i < 3e6; i++) hot = (hot * 31 + i) | 0
  console.log('jit', hot)
  const wasm = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 6, 1, 4, 0, 65, 42, 11])
  console.log('wasm', new WebAssembly.Instance(new WebAssembly.Module(wasm)).exports.f())
  console.log('os', os.cpus().length > 0, os.totalmem() > 0, os.userInfo().uid === process.getuid())
}

if (cluster.isWorker) {
  const server = http.createServer().listen(0, '127.0.0.1', () => process.send(server.address().port))
} else if (process.argv[2] === 'forked') {
  process.send('message')
} else if (!isMainThread) {
  let sum = 0
  for (let i = 0; i <= 1000; i++) sum += i * workerData.n
  Atomics.add(workerData.shared, 0, workerData.n)
  parentPort.postMessage(sum)
} else {
  main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
}
