package triad;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A server of Triad in a process of its own, for one app. It listens on this device alone, at a port of the system's
 * choice. Requests need its key, since other apps reach the same port.
 */
public final class TriadServer implements AutoCloseable {
    private static final Pattern ADDRESS = Pattern.compile("http://[0-9.]+:[0-9]+");
    private static final int KEY_BYTES = 16;
    private static final long END_SECONDS = 10;

    private final Process process;
    private final String address;
    private final String key;

    /**
     * Starts the server and waits until it listens, which takes as long as the model is prepared. Not for the thread of
     * the user interface.
     *
     * @param nativeLibraryDir the app's {@code getApplicationInfo().nativeLibraryDir}
     * @param cacheDir a folder for prepared models, such as {@code getNoBackupFilesDir()}
     * @param model the path of a model's file; nothing is fetched
     * @param options further options of {@code triad serve}, such as {@code --context}
     * @throws IOException if the program can't be started, or ends; with the last line that it printed
     */
    public TriadServer(String nativeLibraryDir, String cacheDir, String model, String... options) throws IOException {
        // The only folder of an app whose files may be executed has libraries alone, by their names.
        String program = new File(nativeLibraryDir, "libtriad.so").getPath();
        List<String> command = new ArrayList<>(Arrays.asList(program, "serve", "--port", "0", "-m", model));
        command.addAll(Arrays.asList(options));
        key = newKey();
        ProcessBuilder builder = new ProcessBuilder(command).directory(new File(cacheDir));
        builder.environment().put("TRIAD_CACHE", cacheDir);
        builder.environment().put("TRIAD_API_KEY", key);
        builder.redirectOutput(new File("/dev/null"));
        process = builder.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8));
        String found = null;
        try {
            found = waitForAddress(lines);
        } finally {
            if (found == null) {
                process.destroy();
            }
        }
        address = found;
        // A pipe that no one reads would fill up and stop the server.
        Thread reader = new Thread(() -> {
            try {
                while (lines.readLine() != null) { }
            } catch (IOException ended) {
                // The process has ended.
            }
        }, "triad-log");
        reader.setDaemon(true);
        reader.start();
    }

    private String waitForAddress(BufferedReader lines) throws IOException {
        String last = "it printed nothing";
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Matcher found = ADDRESS.matcher(line);
            if (found.find()) {
                return found.group();
            }
            last = line;
        }
        throw new IOException("triad serve ended: " + last);
    }

    private static String newKey() {
        byte[] bytes = new byte[KEY_BYTES];
        new SecureRandom().nextBytes(bytes);
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }

    /** Returns the address, such as {@code http://127.0.0.1:40123}; the paths below it are those of {@code triad serve}. */
    public String address() {
        return address;
    }

    /** Returns the key for the header {@code Authorization: Bearer}. */
    public String key() {
        return key;
    }

    /** Ends the server, and waits until its memory is free. */
    @Override
    public void close() {
        process.destroy();
        try {
            if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException interrupted) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }
}
