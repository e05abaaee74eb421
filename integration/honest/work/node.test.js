const test = require('node:test')
const assert = require('node:assert')

test('adds', () => assert.strictEqual(1 + 1, 2))
test('waits', async () => assert.strictEqual(await new Promise((done) => setTimeout(done, 10, 'x')), 'x'))
