/** The client checks chunks with zod, which tries to make functions from text. The page's policy forbids that, loudly. */
import { config } from "zod/v4/core";

config({ jitless: true });
