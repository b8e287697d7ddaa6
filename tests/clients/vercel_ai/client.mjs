// Uses the Vercel AI SDK as its documentation shows, and prints the results as JSON.
// node client.mjs BASE_URL MODEL API, where API is responses or chat
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [baseURL, name, api] = process.argv.slice(2);
const provider = createOpenAI({ baseURL, apiKey: 'none' });
const model = api === 'chat' ? provider.chat(name) : provider(name);
const common = { model, temperature: 0, maxRetries: 0, maxOutputTokens: 200 };

const chat = await generateText({ ...common, prompt: 'My name is Ada.' });

let streamed = '';
for await (const part of streamText({ ...common, prompt: 'My name is Ada.' }).textStream) streamed += part;

const person = z.object({ name: z.enum(['Ada']), age: z.number().int().min(36).max(36) });
const structured = await generateText({
  ...common,
  output: Output.object({ schema: person }),
  prompt: 'Extract the data as JSON. Sentence: Ada is 36 years old.',
});

const weather = tool({
  description: 'Looks the weather up.',
  inputSchema: z.object({ city: z.enum(['Rome']) }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const tools = await generateText({
  ...common,
  tools: { weather },
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  prompt: 'What is the weather in Rome?',
});

console.log(
  JSON.stringify({
    chat: chat.text,
    usage: chat.usage.outputTokens,
    streamed,
    structured: structured.output,
    results: tools.steps[0].toolResults.map((each) => [each.input, each.output]),
    steps: tools.steps.length,
  }),
);
