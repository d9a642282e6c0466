// Checks dashboards against Grafana's published schema: `node check.mjs FILE.json...` writes each as a constant of the type Dashboard,
// with its panels' options as the types of their plugins, and has the TypeScript compiler check it. Exit code 1 names what is wrong.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const types = join(here, 'node_modules/@grafana/schema/dist/types');
const plugins = { timeseries: 'TimeSeries', stat: 'Stat', 'state-timeline': 'StateTimeline' };
const files = process.argv.slice(2);
if (files.length === 0) {
  console.error('usage: node check.mjs FILE.json...');
  process.exit(2);
}

const directory = mkdtempSync(join(here, '.check-'));
let failed = false;
try {
  for (const file of files) {
    const dashboard = JSON.parse(readFileSync(file, 'utf8'));
    const lines = [`import type { Dashboard } from '${types}/index.gen';`];
    for (const [plugin, name] of Object.entries(plugins)) {
      lines.push(`import type { Options as ${name} } from '${types}/raw/composable/${plugin.replace('-', '')}/panelcfg/x/types.gen';`);
    }
    // In JSON, a member of an enumeration is its text.
    lines.push(
      'type Json<T> = T extends string ? `${T}` : T extends (infer U)[] ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;',
    );
    lines.push(`export const dashboard: Json<Dashboard> = ${JSON.stringify(dashboard, null, 2)};`);
    for (const panel of dashboard.panels) {
      const name = plugins[panel.type];
      if (name === undefined) throw new Error(`${file}: no schema is known for panels of the type ${panel.type}`);
      lines.push(`export const options${panel.id}: Json<Partial<${name}>> = ${JSON.stringify(panel.options)};`);
    }
    writeFileSync(join(directory, `${basename(file, '.json')}.ts`), lines.join('\n'));
  }
  writeFileSync(
    join(directory, 'tsconfig.json'),
    JSON.stringify({
      compilerOptions: { strict: true, noEmit: true, skipLibCheck: true, module: 'esnext', moduleResolution: 'bundler', target: 'es2022', types: [] },
      include: ['*.ts'],
    }),
  );
  execFileSync(process.execPath, [join(here, 'node_modules/typescript/bin/tsc'), '-p', directory], { stdio: ['ignore', 'inherit', 'inherit'] });
} catch (error) {
  failed = true;
  if (error.status === undefined) console.error(error.message);
} finally {
  rmSync(directory, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
